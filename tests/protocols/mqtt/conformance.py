"""The statements of the MQTT standards by number, and the page that says which test holds each.

`python -m tests.protocols.mqtt.conformance` writes docs/reference/mqtt-conformance.md. What a test
holds it says itself, with `@pytest.mark.holds(v5="3.1.0-1 …", v3="3.1.0-1 …")`; the markers are
read from the source of all tests, so the page cannot claim what no test says. test_conformance.py
fails when the page is out of date, when a marker names a number that is not here, and when a
statement about servers has no test and no reason.

A line of a table: number, whom it binds, what it says in our words.

    s   servers, and so this hub          x   nothing here; the reason is behind the dash
    c   clients only
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.protocols.mqtt import specification as spec

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs/reference/mqtt-conformance.md"

V5: Final = """
1.5.4-1 s strings are well-formed UTF-8, without surrogates
1.5.4-2 s strings have no U+0000
1.5.4-3 s a byte order mark in a string is a character and stays
1.5.5-1 s variable byte integers are as short as they can be
1.5.7-1 s both halves of a string pair are such strings
2.1.3-1 s reserved flag bits have the value that the table gives
2.2.1-2 s a PUBLISH of QoS 0 has no packet id
2.2.1-3 c a client gives each new packet that needs one an id that is free and not 0
2.2.1-4 s so does a server for its PUBLISH of QoS 1 and 2
2.2.1-5 s acknowledgements of a PUBLISH name its packet id
2.2.1-6 s SUBACK and UNSUBACK name the packet id of the request
2.2.2-1 s a packet without properties says so with a length of 0
3.1.0-1 s the first packet of a client is a CONNECT
3.1.0-2 s a second CONNECT is a protocol error and ends the connection
3.1.2-1 s the protocol is called MQTT, or the connection ends
3.1.2-2 s another protocol version than those spoken is refused, perhaps with 0x84
3.1.2-3 s the reserved connect flag is 0
3.1.2-4 s clean start ends an existing session and begins a new one
3.1.2-5 s without clean start an existing session goes on
3.1.2-6 s without clean start and without a session one begins
3.1.2-7 s a will is kept with the session
3.1.2-8 s it is published when the connection closes without goodbye, after its delay or the session
3.1.2-9 s the will's properties, topic and payload are there if the will flag is set
3.1.2-10 s a will is gone once it is published or the client disconnected with success
3.1.2-11 s without a will the will's QoS is 0
3.1.2-12 s the will's QoS is never 3
3.1.2-13 s without a will, will retain is 0
3.1.2-14 s a will that does not say retain is not retained
3.1.2-15 s a will that says retain is retained
3.1.2-16 s without its flag there is no user name
3.1.2-17 s with its flag there is a user name
3.1.2-18 s without its flag there is no password
3.1.2-19 s with its flag there is a password
3.1.2-20 c with nothing else to say, a client sends PINGREQ within its keep alive
3.1.2-21 c it uses the server's keep alive if it is told one
3.1.2-22 s who is silent for one and a half of its keep alive is disconnected
3.1.2-23 s a session with an expiry is kept when the connection closes
3.1.2-24 s no packet is larger than the client's maximum
3.1.2-25 s a message that would be is dropped as if it had been sent
3.1.2-26 s no topic alias is above the client's maximum
3.1.2-27 s without a maximum the client gets no topic alias
3.1.2-28 s response information is given only if it was asked for
3.1.2-29 s without problem information, reasons come in PUBLISH, CONNACK and DISCONNECT only
3.1.2-30 s with an authentication method, nothing but AUTH and DISCONNECT comes before CONNACK
3.1.3-1 s the payload's fields come in their order
3.1.3-2 s the client id names the session, for both sides
3.1.3-3 s the client id is there, and first
3.1.3-4 s the client id is a UTF-8 string
3.1.3-5 s client ids of 1 to 23 letters and digits are allowed
3.1.3-6 s a server that allows an empty client id gives the client one of its own
3.1.3-7 s and tells it
3.1.3-8 s a client id that is not accepted is refused, perhaps with 0x85, and the connection closed
3.1.3-9 s who comes back within the will delay has no will published
3.1.3-10 s the will's user properties keep their order
3.1.3-11 s the will's topic is a UTF-8 string
3.1.3-12 s the user name is a UTF-8 string
3.1.4-1 s a malformed CONNECT ends the connection
3.1.4-2 s so does one that fails any other check
3.1.4-3 s another connection of the same client is told 0x8E and closed
3.1.4-4 s clean start is obeyed
3.1.4-5 s a CONNECT that is accepted is answered with a CONNACK of success
3.1.4-6 s after a CONNECT that is refused nothing more is processed
3.2.0-1 s nothing but AUTH is sent before the CONNACK
3.2.0-2 s a connection has one CONNACK at most
3.2.2-1 s the reserved bits of the CONNACK's flags are 0
3.2.2-2 s after a clean start no session is present
3.2.2-3 s without clean start, session present says whether there was one
3.2.2-4 c a client without a session that hears of one closes the connection
3.2.2-5 c a client with a session that hears of none forgets its own
3.2.2-6 s in a refusal no session is present
3.2.2-7 s after a refusal the connection is closed
3.2.2-8 s the CONNACK's reason code is one of its table
3.2.2-9 s a server without QoS 1 or 2 says so
3.2.2-10 s SUBSCRIBE may ask for any QoS
3.2.2-11 c a client keeps to the server's maximum QoS
3.2.2-12 s a will of a QoS that the server does not have is refused
3.2.2-13 s a retained will is refused where nothing is retained
3.2.2-14 c a client does not publish retained messages to a server that keeps none
3.2.2-15 c a client sends no packet above the server's maximum
3.2.2-16 s a client id that the server gives is nobody else's
3.2.2-17 c a client uses no topic alias above the server's maximum
3.2.2-18 c nor any if there is no maximum
3.2.2-19 s a reason string that makes the CONNACK too large for the client is left out
3.2.2-20 x so are user properties — the hub adds none
3.2.2-21 c a client uses the server's keep alive
3.2.2-22 s without one the server uses the client's
3.3.1-1 s a PUBLISH that is sent again says so (DUP)
3.3.1-2 s never with QoS 0
3.3.1-3 s the DUP of what is sent on does not depend on what came
3.3.1-4 s QoS 3 is malformed
3.3.1-5 s a retained message replaces the one before
3.3.1-6 s an empty one removes it and is delivered like any other
3.3.1-7 s an empty one is not kept
3.3.1-8 s what is not retained leaves the retained message alone
3.3.1-9 s retain handling 0: a subscription gets the retained messages
3.3.1-10 s retain handling 1: only if it is new
3.3.1-11 s retain handling 2: never
3.3.1-12 s without retain as published the flag is cleared on the way
3.3.1-13 s with it the flag stays as it was
3.3.2-1 s a topic is a UTF-8 string, and first
3.3.2-2 s a topic has no wildcards
3.3.2-3 s what a subscriber gets matches its filter
3.3.2-4 s the payload format is passed on as it is
3.3.2-5 s an expired message is deleted for who did not begin to get it
3.3.2-6 s the expiry that is passed on is what is left of it
3.3.2-7 s topic aliases end with the connection
3.3.2-8 s no topic alias is 0
3.3.2-9 c a client uses no alias above the server's maximum
3.3.2-10 c a client takes all aliases up to its own maximum
3.3.2-11 s a server uses none above the client's maximum
3.3.2-12 s a server takes all up to its own maximum
3.3.2-13 s a response topic is a UTF-8 string
3.3.2-14 s a response topic has no wildcards
3.3.2-15 s it is passed on as it is
3.3.2-16 s correlation data is passed on as it is
3.3.2-17 s user properties are passed on as they are
3.3.2-18 s in their order
3.3.2-19 s a content type is a UTF-8 string
3.3.2-20 s it is passed on as it is
3.3.4-1 s a PUBLISH is answered as its QoS demands
3.3.4-2 s overlapping subscriptions: delivered with the highest QoS
3.3.4-3 s a message carries the identifier of the subscription it is sent for
3.3.4-4 s one copy for several subscriptions carries all their identifiers
3.3.4-5 x several copies carry one each — there is always one copy
3.3.4-6 s a client's PUBLISH has no subscription identifier
3.3.4-7 s a client leaves no more publishes unanswered than the server's receive maximum
3.3.4-8 c a client does not delay other packets because of it
3.3.4-9 s a server leaves no more unanswered than the client's receive maximum
3.3.4-10 s and does not delay other packets because of it
3.4.2-1 s the PUBACK's reason code is one of its table
3.4.2-2 s a reason string that makes the PUBACK too large is left out
3.4.2-3 x so are user properties — the hub adds none
3.5.2-1 s the PUBREC's reason code is one of its table
3.5.2-2 s a reason string that makes the PUBREC too large is left out
3.5.2-3 x so are user properties — the hub adds none
3.6.1-1 s the flags of a PUBREL are 0010
3.6.2-1 s the PUBREL's reason code is one of its table
3.6.2-2 x a reason string that makes the PUBREL too large is left out — the hub sends none
3.6.2-3 x so are user properties — the hub adds none
3.7.2-1 s the PUBCOMP's reason code is one of its table
3.7.2-2 x a reason string that makes the PUBCOMP too large is left out — the hub sends none
3.7.2-3 x so are user properties — the hub adds none
3.8.1-1 s the flags of a SUBSCRIBE are 0010
3.8.3-1 s topic filters are UTF-8 strings
3.8.3-2 s a SUBSCRIBE has one filter at least
3.8.3-3 s no local: what a client publishes does not come back to it
3.8.3-4 s no local on a shared subscription is a protocol error
3.8.3-5 s the reserved bits of the options are 0
3.8.4-1 s a SUBSCRIBE is answered with a SUBACK
3.8.4-2 s of the same packet id
3.8.4-3 s the same filter again replaces the subscription
3.8.4-4 s retained messages come again if retain handling says so, and none is lost meanwhile
3.8.4-5 s several filters are as several SUBSCRIBEs with one answer
3.8.4-6 s the SUBACK has a reason code for each filter
3.8.4-7 s which says the QoS that is granted, or why not
3.8.4-8 s a message comes with the lower of its own QoS and the granted one
3.9.2-1 x a reason string that makes the SUBACK too large is left out — the hub sends none
3.9.2-2 x so are user properties — the hub adds none
3.9.3-1 s the SUBACK's codes are in the order of the filters
3.9.3-2 s and of its table
3.10.1-1 s the flags of an UNSUBSCRIBE are 0010
3.10.3-1 s its filters are UTF-8 strings
3.10.3-2 s there is one at least
3.10.4-1 s a filter that is the same, byte for byte, ends the subscription
3.10.4-2 s no new message is added for it
3.10.4-3 s what was begun with QoS 1 and 2 is completed
3.10.4-4 s an UNSUBSCRIBE is answered with an UNSUBACK
3.10.4-5 s also if there was no such subscription
3.10.4-6 s several filters are as several UNSUBSCRIBEs with one answer
3.11.2-1 x a reason string that makes the UNSUBACK too large is left out — the hub sends none
3.11.2-2 x so are user properties — the hub adds none
3.11.3-1 s the UNSUBACK's codes are in the order of the filters
3.11.3-2 s and of its table
3.12.4-1 s a PINGREQ is answered with a PINGRESP
3.14.0-1 s a server sends DISCONNECT only after a CONNACK of success
3.14.1-1 s the reserved bits of a DISCONNECT are 0
3.14.2-1 s its reason code is one of its table
3.14.2-2 s a server's DISCONNECT has no session expiry
3.14.2-3 s a reason string that makes it too large is left out
3.14.2-4 x so are user properties — the hub adds none
3.14.4-1 s nothing follows a DISCONNECT
3.14.4-2 s its sender closes the connection
3.14.4-3 s a DISCONNECT of success takes the will back
3.15.1-1 s the reserved bits of an AUTH are 0
3.15.2-1 s its reason code is one of its table
3.15.2-2 x a reason string that makes the AUTH too large is left out — the hub sends none
3.15.2-3 x so are user properties — the hub adds none
4.1.0-1 s a session is kept while its connection is open
4.1.0-2 s it is forgotten once it expired without a connection
4.2.0-1 s some transport is spoken that keeps all bytes in order
4.3.1-1 s QoS 0 is sent with DUP 0
4.3.2-1 s QoS 1, sender: each new message has a packet id that is free
4.3.2-2 s and is sent first with DUP 0
4.3.2-3 s and is open until its PUBACK came
4.3.2-4 s QoS 1, receiver: PUBACK once the message is its own
4.3.2-5 s afterwards the same packet id is a new message, whatever DUP says
4.3.3-1 s QoS 2, sender: each new message has a packet id that is free
4.3.3-2 s and is sent first with DUP 0
4.3.3-3 s and is open until its PUBREC came
4.3.3-4 s which is answered with a PUBREL, unless it refuses
4.3.3-5 s which is open until its PUBCOMP came
4.3.3-6 s after the PUBREL the PUBLISH is never sent again
4.3.3-7 s a message that was sent does not expire any more
4.3.3-8 s QoS 2, receiver: PUBREC once the message is its own
4.3.3-9 s after a PUBREC that refuses, the same packet id is a new message
4.3.3-10 s until the PUBREL it is the same message: PUBREC, and nobody gets it twice
4.3.3-11 s a PUBREL is answered with a PUBCOMP
4.3.3-12 s afterwards the same packet id is a new message
4.3.3-13 s the exchange goes on even if the message expired
4.4.0-1 s what is open is sent again when the client comes back, with its packet id, and only then
4.4.0-2 s what was refused is not sent again
4.5.0-1 s a message is added to the session of every client with a matching subscription
4.5.0-2 c a client acknowledges every PUBLISH, wanted or not
4.6.0-1 s what is sent again is sent in the order of the first time
4.6.0-2 c PUBACKs are sent in the order of the PUBLISHes
4.6.0-3 c so are PUBRECs
4.6.0-4 c PUBRELs are sent in the order of the PUBRECs
4.6.0-5 s of one topic and QoS, a subscriber gets what one client published in its order
4.6.0-6 s unless told otherwise, every topic is ordered so
4.7.0-1 s topics have no wildcards
4.7.1-1 s # stands alone in the last level of a filter
4.7.1-2 s + stands alone in its level
4.7.2-1 s a filter that begins with a wildcard does not match a topic that begins with $
4.7.3-1 s topics and filters have one character at least
4.7.3-2 s and no U+0000
4.7.3-3 s and 65,535 bytes at most
4.7.3-4 s they are compared as they are
4.8.2-1 s a shared subscription is $share/, a name of one character at least
4.8.2-2 s without / + #, then / and a filter
4.8.2-3 s a member gets no higher QoS than it was granted
4.8.2-4 s QoS 2 that was begun with a member is completed with that member
4.8.2-5 s if its session ends before, nobody else gets the message
4.8.2-6 s a member that refuses a message ends it: nobody else gets it
4.9.0-1 s the window is not 0 and not above the receive maximum
4.9.0-2 s with a full window no PUBLISH of QoS 1 or 2 is sent
4.9.0-3 s and everything else is answered all the same
4.12.0-1 s a method that is not supported ends the connection, perhaps with 0x8C or 0x87
4.12.0-2 s a server that needs to know more sends an AUTH with 0x18
4.12.0-3 s a client answers with an AUTH with 0x18
4.12.0-4 s a failure ends the connection
4.12.0-5 s every AUTH and the CONNACK name the method of the CONNECT
4.12.0-6 s without a method the server sends neither AUTH nor a method
4.12.0-7 s without a method a client sends no AUTH
4.12.1-1 s who authenticates again uses the same method
4.12.1-2 s if that fails the connection ends
4.13.1-1 s a malformed packet or protocol error ends the connection
4.13.2-1 s so does any CONNACK or DISCONNECT with a code of 0x80 and above
6.0.0-1 s over a WebSocket, anything but a binary frame ends the connection
6.0.0-2 s packets and WebSocket frames need not begin together
6.0.0-3 c a client offers the sub-protocol mqtt
6.0.0-4 s the server answers with it
7.0.0-1 x a server that also connects out conforms as a client too — bridges are tested as such
7.0.0-2 x no extension is needed to work with others — see the tests with other clients and brokers
7.1.1-1 s a server speaks some transport that keeps all bytes in order
7.1.2-1 c so does a client
"""

V3: Final = """
1.5.3-1 s strings are well-formed UTF-8, or the connection ends
1.5.3-2 s strings have no U+0000, or the connection ends
1.5.3-3 s a byte order mark in a string is a character and stays
2.2.2-1 s reserved flag bits have the value that the table gives
2.2.2-2 s other flags end the connection
2.3.1-1 s SUBSCRIBE, UNSUBSCRIBE and PUBLISH of QoS 1 and 2 have a packet id that is not 0
2.3.1-2 c a client gives each new one an id that is free
2.3.1-3 c and keeps it when it sends the packet again
2.3.1-4 s the same holds for what a server publishes
2.3.1-5 s a PUBLISH of QoS 0 has no packet id
2.3.1-6 s acknowledgements of a PUBLISH name its packet id
2.3.1-7 s SUBACK and UNSUBACK name the packet id of the request
3.1.0-1 s the first packet of a client is a CONNECT
3.1.0-2 s a second CONNECT ends the connection
3.1.2-1 s a protocol of another name may be refused
3.1.2-2 s another protocol version is answered with 1 and closed
3.1.2-3 s the reserved connect flag is 0, or the connection ends
3.1.2-4 s without clean session the session goes on, or begins
3.1.2-5 s messages of QoS 1 and 2 are kept for a session that is away
3.1.2-6 s clean session ends an existing one, and its own ends with the connection
3.1.2-7 s retained messages belong to no session
3.1.2-8 s a will is kept, and published when the connection is lost
3.1.2-9 s with the will flag its topic and payload are there
3.1.2-10 s a will is gone once it is published or the client disconnected
3.1.2-11 s without the will flag there is no will topic, payload, QoS or retain
3.1.2-12 s and nothing is published
3.1.2-13 s without a will the will's QoS is 0
3.1.2-14 s the will's QoS is never 3
3.1.2-15 s without a will, will retain is 0
3.1.2-16 s a will that does not say retain is not retained
3.1.2-17 s a will that says retain is retained
3.1.2-18 s without its flag there is no user name
3.1.2-19 s with its flag there is a user name
3.1.2-20 s without its flag there is no password
3.1.2-21 s with its flag there is a password
3.1.2-22 s without a user name there is no password
3.1.2-23 c with nothing else to say, a client sends PINGREQ within its keep alive
3.1.2-24 s who is silent for one and a half of its keep alive is disconnected
3.1.3-1 s the payload's fields come in their order
3.1.3-2 s the client id names the session, for both sides
3.1.3-3 s the client id is there, and first
3.1.3-4 s the client id is a UTF-8 string
3.1.3-5 s client ids of 1 to 23 letters and digits are allowed
3.1.3-6 s a server that allows an empty client id gives the client one of its own
3.1.3-7 c who has an empty client id asks for a clean session
3.1.3-8 s an empty client id without a clean session is answered with 2 and closed
3.1.3-9 s so is any other client id that is not accepted
3.1.3-10 s the will's topic is a UTF-8 string
3.1.3-11 s the user name is a UTF-8 string
3.1.4-1 s a malformed CONNECT ends the connection without a CONNACK
3.1.4-2 s another connection of the same client is closed
3.1.4-3 s clean session is obeyed
3.1.4-4 s a CONNECT that is accepted is answered with a CONNACK of 0
3.1.4-5 s after a CONNECT that is refused nothing more is processed
3.2.0-1 s the first packet of a server is a CONNACK
3.2.2-1 s with a clean session none is present
3.2.2-2 s otherwise session present says that there was one
3.2.2-3 s or that there was none
3.2.2-4 s in a refusal no session is present
3.2.2-5 s after a refusal the connection is closed
3.2.2-6 s without a fitting return code it is closed without a CONNACK
3.3.1-1 s a PUBLISH that is sent again says so (DUP)
3.3.1-2 s never with QoS 0
3.3.1-3 s the DUP of what is sent on does not depend on what came
3.3.1-4 s QoS 3 ends the connection
3.3.1-5 s a retained message and its QoS are kept for future subscribers
3.3.1-6 s a new subscription gets the last one of each topic
3.3.1-7 s a retained one of QoS 0 replaces the one before
3.3.1-8 s what is sent because of a new subscription says retain
3.3.1-9 s what is sent because of an existing one does not
3.3.1-10 s an empty retained message removes it and is delivered like any other
3.3.1-11 s an empty one is not kept
3.3.1-12 s what is not retained leaves the retained message alone
3.3.2-1 s a topic is a UTF-8 string, and first
3.3.2-2 s a topic has no wildcards
3.3.2-3 s what a subscriber gets matches its filter
3.3.4-1 s a PUBLISH is answered as its QoS demands
3.3.5-1 s overlapping subscriptions: delivered with the highest QoS
3.3.5-2 s a PUBLISH that is not permitted is acknowledged, or the connection closed
3.6.1-1 s the flags of a PUBREL are 0010
3.8.1-1 s the flags of a SUBSCRIBE are 0010
3.8.3-1 s topic filters are UTF-8 strings
3.8.3-2 x a server without wildcards refuses them — they are there
3.8.3-3 s a SUBSCRIBE has one filter at least
3.8.3-4 s other bits than a QoS of 0, 1 or 2 are malformed
3.8.4-1 s a SUBSCRIBE is answered with a SUBACK
3.8.4-2 s of the same packet id
3.8.4-3 s the same filter again replaces the subscription, sends what is retained, loses nothing
3.8.4-4 s several filters are as several SUBSCRIBEs with one answer
3.8.4-5 s the SUBACK has a return code for each filter
3.8.4-6 s a message comes with the lower of its own QoS and the granted one
3.9.3-1 s the SUBACK's codes are in the order of the filters
3.9.3-2 s and are 0, 1, 2 or 0x80
3.10.1-1 s the flags of an UNSUBSCRIBE are 0010
3.10.3-1 s its filters are UTF-8 strings
3.10.3-2 s there is one at least
3.10.4-1 s a filter that is the same, byte for byte, ends the subscription
3.10.4-2 s no new message is added for it
3.10.4-3 s what was begun with QoS 1 and 2 is completed
3.10.4-4 s an UNSUBSCRIBE is answered with an UNSUBACK of the same packet id
3.10.4-5 s also if there was no such subscription
3.10.4-6 s several filters are as several UNSUBSCRIBEs with one answer
3.12.4-1 s a PINGREQ is answered with a PINGRESP
3.14.1-1 s the reserved bits of a DISCONNECT are 0
3.14.4-1 c after a DISCONNECT the client closes the connection
3.14.4-2 c and sends nothing more
3.14.4-3 s a DISCONNECT takes the will back
4.1.0-1 s a session's state is kept as long as the session
4.1.0-2 s and at least as long as its connection
4.3.1-1 s QoS 0 is sent with DUP 0
4.3.2-1 s QoS 1, sender: a free packet id, DUP 0 first, open until its PUBACK came
4.3.2-2 s QoS 1, receiver: PUBACK once the message is its own; then the packet id is a new message
4.3.3-1 s QoS 2, sender: a free packet id, DUP 0 first, open until PUBREC, then PUBREL until PUBCOMP
4.3.3-2 s QoS 2, receiver: PUBREC, nobody gets it twice, PUBCOMP; then the packet id is free
4.4.0-1 s what is open is sent again when the client comes back, with its packet id
4.5.0-1 s a message is added to the session of every client with a matching subscription
4.5.0-2 c a client acknowledges every PUBLISH, wanted or not
4.6.0-1 s what is sent again is sent in the order of the first time
4.6.0-2 s PUBACKs are sent in the order of the PUBLISHes
4.6.0-3 s so are PUBRECs
4.6.0-4 s PUBRELs are sent in the order of the PUBRECs
4.6.0-5 s unless told otherwise, every topic is ordered
4.6.0-6 s a subscriber gets what one client published in its order
4.7.1-1 s topics have no wildcards
4.7.1-2 s # stands alone in the last level of a filter
4.7.1-3 s + stands alone in its level
4.7.2-1 s a filter that begins with a wildcard does not match a topic that begins with $
4.7.3-1 s topics and filters have one character at least
4.7.3-2 s and no U+0000
4.7.3-3 s and 65,535 bytes at most
4.7.3-4 s they are compared as they are
4.8.0-1 s a protocol violation ends the connection
4.8.0-2 s so does trouble of the server's own with a packet
6.0.0-1 s over a WebSocket, anything but a binary frame ends the connection
6.0.0-2 s packets and WebSocket frames need not begin together
6.0.0-3 c a client offers the sub-protocol mqtt
6.0.0-4 s the server answers with it
7.0.0-1 x a server that also connects out conforms as a client too — bridges are tested as such
7.0.0-2 x no extension is needed to work with others — see the tests with other clients and brokers
7.1.1-1 s a server speaks some transport that keeps all bytes in order
7.1.2-1 c so does a client
"""

TITLES: Final = {"v5": "MQTT 5.0", "v3": "MQTT 3.1.1"}
BINDS: Final = {"c": "clients", "x": "not here"}

HEAD: Final = """# MQTT: what the standards demand, and the tests that hold it

Made by `python -m tests.protocols.mqtt.conformance` from the tests themselves; a test fails when
this page is not what it would write. Each statement is named by its number in the standard
(`[MQTT-3.1.0-1]` is `3.1.0-1` here) and said in our words, not the standard's. Read the standard
beside it: [5.0](https://docs.oasis-open.org/mqtt/mqtt/v5.0/os/mqtt-v5.0-os.html),
[3.1.1](https://docs.oasis-open.org/mqtt/mqtt/v3.1.1/os/mqtt-v3.1.1-os.html).

The numbers were compared with two independent copies of each standard's appendix. These differed
over `7.0.0-1` to `7.1.2-1` of 5.0; a translation of its text and a third list have them as here.
Sections 4.10 and 4.11 of 5.0 (request and response, redirection) have no numbered statements; what
they describe is there and tested (`test_modern.py`).

3.1 has no numbered statements and is spoken as 3.1.1, but for what its own text says: PUBREL,
SUBSCRIBE and UNSUBSCRIBE may say DUP; user name and password may be missing though their flags are
set; a CONNACK has no session present; a SUBACK has no failure, so who may not subscribe is told the
QoS it asked for, and gets nothing (`test_connect.py`).

Where the standards leave a choice, or we differ:

- **A message that has no room.** A queue (`$queue/…`), `$delayed/…` and the retained messages are
  bounded. A client of 5.0 is told 0x97 in its PUBACK or PUBREC. Before 5.0 nothing can refuse, and
  an acknowledgement would promise what is not so: the connection is closed, and the client sends
  the message again when it comes back. QoS 0 is dropped and counted.
- **What one receiver cannot keep** (a full backlog, a queue that is only bound to the topic) is
  dropped for it alone and counted; the publisher is not told.
- **A publish that is not permitted** is refused with 0x87, before 5.0 acknowledged and dropped.
- **DUP after a crash of the hub.** Nobody knows which of a client's deliveries had left: all that
  the window could hold say DUP.
- **Wills after a crash, or when the hub stops**, are published: the clients did not say goodbye.
  A client whose rights do not cover its will has none.
- **The user properties** `smq-subtopic` and `smq-subtid` mean something to this hub and come before
  the others when a message waited; all others keep their order.
- **A filter has 200 levels at most**, so that none of 65,535 slashes makes a deep tree. One more is
  refused in the SUBACK (0x80, 0x8F), and the other filters of the packet are taken; mosquitto ends
  the connection. A topic may have any number of levels, there 201.
- **QoS 1 may overtake QoS 2**, which waits for the disk on its way to a subscriber.
- **A remaining length longer than it need be** is malformed in 5.0 once the client is connected;
  3.1.1 has no such rule, and clients that reserve four bytes for it exist.
- **As mosquitto has it**, where a server may choose: control characters and non-characters in
  client ids, user names and topics end the connection (1.5.4), and a topic of another protocol that
  has one reaches no MQTT client; what is no CONNECT has no CONNACK;
  of a client's own QoS 2 messages its copy comes between PUBREC and PUBCOMP; DUP with QoS 0 is
  taken, and not passed on; a login without a password is refused with 5 (0x87); while more than
  1,000 bytes of a packet are missing, parts of it count as signs of life.
- **Not as mosquitto 2.0 has it** (`interop/test_beside_mosquitto.py` shows both):
    - a wrong password is 4 (0x86), there 5 (0x87): it says what to do;
    - reserved flags and packets that only servers send end the connection, as 2.2.2-2 demands;
    - `$share//a` and `$share/+/a` are refused, there accepted, and nothing ever comes;
    - a shared subscription with no local ends the connection (3.8.3-4);
    - a text in a value (user property, content type) may have control characters: people put line
      ends there;
    - a payload that says that it is text and is not is refused with 0x99, a will like that ends the
      connection;
    - a response topic with wildcards, a PUBLISH with a subscription identifier, a CONNECT with data
      for no authentication method end the connection;
    - 5.0 is told why in a DISCONNECT each time, with the code that fits best, and 0x92 where a
      PUBREC or PUBREL finds nothing; a client of a level above 5 is refused with 0x84.
"""

# Reason codes of 5.0: when the hub sends each, or `-` and why it never does. Section 2.4.
CODES: Final = """
00 success; granted QoS 0 in a SUBACK; no more to say in an AUTH
01 granted QoS 1
02 granted QoS 2
04 - only clients say it
10 a PUBLISH of QoS 1 or 2 that nobody subscribes to
11 an UNSUBSCRIBE of a filter that was not subscribed to
18 the exchange of credentials goes on
19 - only clients say it
80 - a refusal has a more exact reason; after an error of the hub itself the connection is closed
81 a packet that does not obey the format
82 a packet that is well-formed but out of place
83 - nothing is refused that the standard allows and this hub does not do, but for what has a code
84 a CONNECT of another version
85 a client id that is not let in here
86 a wrong user name or password
87 what the permissions do not cover
88 - who cannot be served is told 0x89 or 0x9C; a hub that cannot serve does not listen
89 too many clients want their password checked, or too much is said before the CONNACK
8a - nobody is banned by name; who shall not come has no account
8b the hub is stopping
8c an authentication method that is not known here
8d silence of more than one and a half times the keep alive
8e another connection came with the client id
8f a filter that is none, or is not allowed as it is
90 a topic name that is none ends the connection; `$queue/`, which names no queue, is answered so
91 - packet ids are used again without a word: what repeats them repeats the packet
92 a PUBREL, or a PUBREC, for a packet id that is not in use
93 more unanswered publishes than `mqtt.receive_maximum`
94 a topic alias that is 0 or too large
95 a packet or its properties over their bound, or an answer that the client could not take
96 - who sends too fast is read more slowly, not ended (`limits.client_messages_per_second`)
97 a bound is reached: of a client, or of what one user may have of what is there for all
98 the program that the hub is part of ends the client
99 a payload that is not UTF-8 though it says so
9a a retained message where `limits.retained_messages` is 0
9b a QoS above `mqtt.maximum_qos`
9c clients shall go to `mqtt.server_reference`
9d the same with `mqtt.server_moved`
9e a shared subscription where `mqtt.shared_subscriptions` is false
9f more clients in a second than `mqtt.connect_rate`, or of one address (`limits`)
a0 - no connection is too old
a1 - subscription identifiers are always offered
a2 a filter with wildcards where `mqtt.wildcard_subscriptions` is false
"""


class Statement(NamedTuple):
    number: str
    binds: str
    words: str


def statements(table: str) -> list[Statement]:
    return [Statement(*line.split(" ", 2)) for line in table.strip().splitlines()]


TABLES: Final = {"v5": statements(V5), "v3": statements(V3)}

Held = dict[tuple[str, str], list[str]]  # (standard, number) -> the tests


def held() -> Held:
    """Who holds what, from the markers in the source of all tests, in the order of the files."""
    found: Held = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test, standard, number in marked(path.read_text()):
            name = f"{path.relative_to(ROOT / 'tests')}::{test}"
            found.setdefault((standard, number), []).append(name)
    return found


def marked(source: str) -> Iterator[tuple[str, str, str]]:
    """Test, standard and number of each statement that a marker in the source names."""
    if "mark.holds(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or not _is_holds(decorator.func):
                continue
            for keyword in decorator.keywords:
                for number in str(ast.literal_eval(keyword.value)).split():
                    yield node.name, str(keyword.arg), number


def _is_holds(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "holds"


def page() -> str:
    tests = held()
    parts = [HEAD]
    for standard, table in TABLES.items():
        counted = [one for one in table if one.binds == "s"]
        tested = [one for one in counted if (standard, one.number) in tests]
        parts.append(f"\n## {TITLES[standard]}\n")
        parts.append(
            f"{len(table)} statements; {len(counted)} bind a server, "
            f"and {len(tested)} of these have a test.\n"
        )
        parts.append("| statement | says | held by |\n|---|---|---|")
        parts.extend(_line(standard, one, tests) for one in table)
        parts.append("")
    parts.extend(_reason_codes())
    return "\n".join(parts)


def _line(standard: str, one: Statement, tests: Held) -> str:
    names = tests.get((standard, one.number), [])
    by = "<br>".join(f"`{name}`" for name in names) or BINDS.get(one.binds, "**no test**")
    words = one.words.replace("|", "\\|")
    return f"| {one.number} | {words} | {by} |"


def codes() -> dict[int, str]:
    """What the page says of each reason code."""
    lines = (line.split(" ", 1) for line in CODES.strip().splitlines())
    return {int(code, 16): words for code, words in lines}


def _reason_codes() -> Iterator[str]:
    yield "\n## Reason codes of 5.0\n"
    yield "Each that the hub sends is in a transcript of the tests.\n"
    yield "| code | name | sent for |\n|---|---|---|"
    for code, words in codes().items():
        said = f"never: {words[2:]}" if words.startswith("- ") else words
        yield f"| 0x{code:02X} | {spec.REASONS[code].name} | {said} |"
    yield ""


def main() -> None:
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
