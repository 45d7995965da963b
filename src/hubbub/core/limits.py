"""Every bound of the hub, by name, with its reason. Settings may lower or raise some of them."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Before a connection has said what it is.
HEAD_BYTES: Final = 16 * KIB  # the usual bound of web servers
PIPELINED: Final = 100  # requests of one stranger, or to web pages, that wait; browsers send one
STRANGERS: Final = 20_000  # connections that were not let in yet: 100 MB; who of them goes first
STRANGER_SECONDS: Final = 30.0  # until they must be: a modem may say CONNECT ten after it dialled
STRANGERS_SHARE: Final = 0.25  # of the time for what all of them say, answers included
STRANGERS_BURST: Final = 0.02  # seconds for which that may be saved up: 5 ms of work at once
HEARD_SECONDS: Final = 0.002  # that one of them pays at most: the rest is not its fault
MADE_SECONDS: Final = 0.0001  # for a connection that waited to be one: measured
ASKED_SECONDS: Final = 0.0002  # for a request to the web application, beside what is measured
LOGIN_BYTES: Final = 16 * KIB  # until one has said who it is; a protocol may say more
CONNECT_BYTES: Final = 512 * KIB  # where the first packet brings a will, with a payload
HANDSHAKES: Final = 500  # of TLS, under way at a listener: OpenSSL has buffers for each
HALF_SECONDS: Final = 30.0  # without a byte of the rest of a request or packet; an answer not taken
EARLY_BYTES: Final = 256 * KIB  # what comes while the gate thinks; a read of the socket
CONTROL_BYTES: Final = 1 * MIB  # of commands in one message: some ten thousand clients
TOKEN_BYTES: Final = 8 * KIB  # of a JWT: with the longest signature and 200 lines of permissions
TOKEN_LINES: Final = 200  # of permissions in one; each name that its user says is held against them
TOKEN_KEYS: Final = 100  # of who signs them: a token without a key's name is tried with all
TLS_EMPTY: Final = 32  # records without data at once, and one a second: a change of keys is one
TLS_SECONDS: Final = 30.0  # for the handshake: with chains of 4096 bits at 1 KB/s it is 15

# A connection's out-buffer. Over LINK_CHOKED QoS 0 is dropped and backlogs wait. What grows after
# that is what the client itself asks for: over LINK_PAUSED nothing more is read from it. LINK_BYTES
# may wait beside the largest piece; who is over that even so is ended.
CLOSE_SECONDS: Final = 10.0  # for a peer to read what is left before it is cut off
GONE_SECONDS: Final = 0.25  # for others to be counted out, before one too many is refused
LINGER_SECONDS: Final = 1.0  # for a peer to read why, while what it still says is discarded
FAREWELLS: Final = 32  # of a node at once; each has a descriptor, and is counted out already
LINK_CHOKED: Final = 1 * MIB  # several full socket buffers: the reader is behind, not unlucky
LINK_PAUSED: Final = 4 * MIB  # answers to one read of the socket, whatever it asked for
LINK_BYTES: Final = 32 * MIB  # what one tick may gather; one message more may be of any size
HOLD_BACK_SECONDS: Final = 5.0  # for the only reader to take a MiB: 200 KB/s, a poor phone's
HOLD_BACK_FROM: Final = 256 * KIB  # from one publisher since then: a file, and not an answer
HOLD_BACK_AGAIN: Final = 60.0  # seconds in which who waited in vain is not made to wait again
HOLD_BACK_BYTES: Final = 2 * MIB  # on the link: what publishers said before they had to wait
STALLED_SECONDS: Final = 120.0  # without taking a byte of a choked link: longer than any bad line
SEND_BUFFER: Final = 64 * KIB  # SO_SNDBUF: bounds what the kernel holds for a dead reader
KEEP_ALIVE_SECONDS: Final = 230.0  # TCP's own: routers forget silent connections after 240

# What connections make the hub keep: what is half sent, asked but not answered, answered but not
# read. A link up to LINK_CHOKED is a slow reader of QoS 0 and has that bound; it is not counted.
WAITING_BYTES: Final = 512 * MIB  # of all together: eight messages of the largest size
STRANGE_BYTES: Final = 32 * MIB  # of who was not let in: 64 of the largest logins, half there
WEIGHED_BYTES: Final = 16 * KIB  # from one look at a connection that sends to the next
RELIEVED: Final = 8  # over the bound they are ended until an eighth is free: one look for many
ASKED_BYTES: Final = 600  # what a request that waits takes beside its body; measured

# Messages and names.
MESSAGE_BYTES: Final = 64 * MIB  # people send whole files through queues
NAME_BYTES: Final = 65_535  # what a u16 length can say
NAME_LEVELS: Final = 200  # mosquitto's; a filter of 30,000 slashes must not make a deep tree
PACKET_BYTES: Final = 1 * MIB  # of what is no message: 10,000 filters of a hundred characters
PROPERTIES_BYTES: Final = 64 * KIB  # of a packet: what one string of it may be; a CONNECT has less
USER_PROPERTIES: Final = 500  # of a packet: each takes 10 us, and with 64 KiB there could be 13,000
PLAIN_PROPERTIES: Final = 1000  # that were read and need not be again, of 128 bytes each
CONNECT_PROPERTIES: Final = 4 * KIB  # of a CONNECT, beside those of its will
LONG_BYTES: Final = 1_000  # a packet of which more is missing takes a while: its parts are heard

# Sessions.
INFLIGHT: Final = 512  # over a line of 100 ms 5,000 a second; as many are sent again at most
PREFETCH: Final = 20  # of queues or shared groups, each: the rest stays for other members
BACKLOG_MESSAGES: Final = 100_000  # a device offline for a day at one message a second
BACKLOG_BYTES: Final = 1024 * MIB  # so many of 10 KiB; the journal carries them until they go
MEMORY_LOG_BYTES: Final = 64 * MIB  # unrecorded messages that wait for slow receivers
KEPT_BYTES: Final = 450  # what one of them takes beside its payload; measured
SUBSCRIPTIONS: Final = 10_000  # per session

# The program around the hub.
CALLBACKS: Final = 1_000  # async functions running at once; then messages for them are dropped
CALLS_WAITING: Final = 100_000  # of functions, 30 MB: then nobody is heard until it is less
PIPELINES: Final = 16  # whose state is shown: each has tables of its own
PIPELINE_BYTES: Final = 256 * KIB  # of what one says of itself: a thousand tables
HANDED_OVER: Final = 200  # calls from other threads that wait for the loop

# The broker.
ROUTE_NAME_BYTES: Final = 512  # longer names are rare; their routes are built each time
AUDIENCES: Final = 1_000  # different ones of a segment that are remembered, to be named once
ROUTES: Final = 100_000  # cached answers of all clients; all are thrown away when full
SHORTCUTS: Final = 200_000  # to these, of clients with names of their own: ten thousand of 20 each
VERDICTS: Final = 100_000  # the same of a file of permissions, or of a program that is asked
SIGHTINGS: Final = 1 << 17  # names that are about to get a place there, a byte each
CLIENTS: Final = 1_000_000  # connections: more than the descriptors of any machine
TOPIC_IDS: Final = 1_000_000  # durable names that have a number; the setting allows two million
DELAYED_MESSAGES: Final = 100_000  # waiting under $delayed/; each is read back when it is due
RETAINED: Final = 1_000_000  # retained messages
RETAINED_BYTES: Final = 4096 * MIB  # of their payloads: each snapshot is written with all of them
PUBLISHERS: Final = 10_000  # of them, whose permissions are at hand: a few hundred bytes each

# Queues.
QUEUE_MESSAGES: Final = 1_000_000  # per queue, then HTTP 507
QUEUE_BYTES: Final = 4 * 1024 * MIB  # of payloads in one queue: one forgotten fills no disk
QUEUES: Final = 100_000
SHARE: Final = 5  # one user with rules takes no more than this part of names that are for all
LASTING_SESSIONS: Final = 500_000  # each takes some kilobytes, and what waits for it
SUBSCRIBED_BYTES: Final = 4096 * MIB  # of all subscriptions, if that is half the memory: 8 million
SUBSCRIPTION_BYTES: Final = 450  # of one, beside its filter; measured
QUEUES_PER_TOKEN: Final = 20_000  # a fifth: one client that makes names cannot end it for all
ENDED_QUEUES: Final = 10_000  # whose next id is remembered one by one; most are reply queues
IDS_AHEAD: Final = 65_536  # rows not yet durable whose ids may be told: a second of a slow disk
TOKENS: Final = 100_000  # logged in at once, under any names; as many as there are queues
POLLS_PER_TOKEN: Final = 1_000  # blocked reads of one client
READER_SECONDS: Final = 30.0  # a service that read so long ago is busy, not gone: as in m-cli
OPEN_REPLIES: Final = 100_000  # requests that others answer by number; each is a small object
SINK_PARTITIONS: Final = 100_000  # of queries, whose last batch is remembered: a line each
REPLY_SECONDS: Final = 60.0  # nobody waits longer for an answer, as a rule

CALLS_TIMED: Final = 10_000  # requests in queues of which it is known since when: a megabyte
GONE_KEPT: Final = 1_000  # clients that went, the last ones, to say why: 500 KB
TOPICS_SAMPLED: Final = 20_000  # of which the rate is known: 6 MB with usual names
SAMPLED_NAME: Final = 256  # characters of one of their names; those that differ later are one
SENDERS_SAMPLED: Final = 2_000  # clients that publish, of which the rate is known: 2 MB
LEVEL_BYTES: Final = 1 * MIB  # of names in an answer about topics: a few milliseconds of the loop
TAILS: Final = 100  # people who watch a topic; each is a client, a fifth of them of one user
TAILED: Final = 200  # messages that wait for one of them, then they are counted: more a second
TAILED_BYTES: Final = 16 * KIB  # of a payload that a page shows: more nobody reads
TAIL_BYTES: Final = 256 * KIB  # of JSON that waits for one tail: all of them at once take 20 ms
PEEKED_BYTES: Final = 4 * MIB  # of messages read for one answer: of others only the size is shown
PAGE_SESSIONS: Final = 1_000  # browsers that are logged in; a fifth of them of one user or address
PAGE_SECONDS: Final = 7 * 86_400.0  # then one logs in again: a screen on a wall, once a week
PAGE_IDLE_SECONDS: Final = 3_600.0  # an open page asks every two seconds
FIGURES_SECONDS: Final = 10.0  # from one point of the figures to the next
FIGURES_KEPT: Final = 8_640  # points: a day of them, 3.5 MB
REFUSALS_KEPT: Final = 1_000  # the last of logins and of actions, to say why: 300 KB each
REFUSALS_TOLD: Final = 120  # a minute, of logins and of actions: a line and 250 bytes of journal
SAID_A_SECOND: Final = 100  # log lines about who came in; more is a storm, and its rows say all
GONE_MOST: Final = 100  # closed connections of one user that are heard later, at its rate

# The tick.
RUN_LOOKED: Final = 250  # messages of one run: in a queue or a group each is taken by itself
PACKETS_LOOKED: Final = 64  # of one client, from one look at the time to the next
TURN_SECONDS: Final = 0.004  # of work for one client that asks for much; then others work
TURN_FETCHED_BYTES: Final = 8 * MIB  # read back from files for all who catch up: some milliseconds
COMMIT_ROWS: Final = 1_000  # a frame of this many rows takes 0.4 ms to build
COMMIT_BYTES: Final = 256 * KIB
GROUP_ROWS: Final = 4 * COMMIT_ROWS  # the loop makes them frames in 2 ms, plain Python in 4
GROUP_BYTES: Final = 1 * MIB  # the same of large ones: more was no faster
COMMIT_SECONDS: Final = 0.1  # what nobody waits for reaches the disk within this time
CONGESTED_BYTES: Final = 16 * MIB  # rows that wait for the disk; above it publishers wait too
FLOODED_BYTES: Final = 32 * MIB  # the same; above it everybody waits

# The journal.
SEGMENT_BYTES: Final = 64 * MIB
SEGMENT_SECONDS: Final = 3600.0
CLOCK_BEHIND: Final = 3600  # seconds a start takes for a clock that was set; more is one that erred
# Zeros behind a segment's end, as many as it has bytes: a sync of a file that keeps its size takes
# half the time.
GROWTH_LEAST: Final = 16 * KIB  # some ten small groups; an idle hub's segment is no longer
GROWTH_MOST: Final = 1 * MIB  # more was no faster; a sync that carries them takes a millisecond
GROWTH_BEHIND_BYTES: Final = 128 * KIB  # behind a larger frame they would serve few syncs
SCARCE_USERS: Final = 10_000  # who published what stays on a disk that fills: 500 bytes each
SCARCE_PLACES: Final = 20  # where that waits, of each: 200 bytes; what is elsewhere counts together
RESERVE_BYTES: Final = 4 * MIB  # kept free for the next snapshot, beside the size of the last
FRAME_BYTES: Final = 4 * MIB  # of one frame of many rows; a reader takes a frame whole
FRAME_CACHE_BYTES: Final = 8 * MIB  # frames read back: an offline client's backlog is in order

# What was published before, for who asks or begins there. A child process reads it, one question
# after the other, so these bound how long others wait and how much waits in the hub.
HISTORY_MESSAGES: Final = 10_000  # of one answer; who wants more reads the journal, or the tables
HISTORY_BYTES: Final = 4 * MIB  # of them with names and properties: some milliseconds as JSON
HISTORY_ROW: Final = 150  # of each beside these bytes: its places and numbers in a frame
HISTORY_SECONDS: Final = 5.0  # of looking for one answer: some gigabytes of journal
HISTORY_ASKED: Final = 50  # questions open until their answers are read: 200 MiB; a fifth of one
HISTORY_STALLED: Final = 5.0  # seconds without reading, then the place is another's who asks
HISTORY_IDLE: Final = 60.0  # seconds without a question after which the child ends
SEGMENT_NAMES: Final = 1 * MIB  # of the names in a segment, to pass over it; 40,000 usual ones

# Between the nodes of a cluster.
CLUSTER_FRAME_BYTES: Final = 256 * KIB  # of records in one frame; NATS takes a MiB as it comes
CLUSTER_RECORD_BYTES: Final = 2 * MESSAGE_BYTES  # of one record that comes in parts
CLUSTER_BEAT_SECONDS: Final = 1.0  # from one sign of life to the next
CLUSTER_DEAD_SECONDS: Final = 5.0  # without one a node is gone: a busy machine stalls for two
# A hub that stood still for longer may be dead for others: the last they heard of it may have been
# said more than a second before, and a turn of theirs passes until they look.
CLUSTER_STOOD_SECONDS: Final = CLUSTER_DEAD_SECONDS - 2 * CLUSTER_BEAT_SECONDS
# For what an engine had when a client was lost, whose will waits so long: a server answers within
# 10 ms, one that was stopped for as long as this is as one that is gone.
CLUSTER_MARK_SECONDS: Final = 1.0
CLUSTER_CLOCK_SECONDS: Final = 60.0  # clocks farther apart would mix old and new retained messages
# The longest pause for whom NATS servers refuse, who is let in so late when that is mended.
CLUSTER_REFUSED_SECONDS: Final = 30.0
CLUSTER_WINDOW: Final = 1_000  # kept messages on their way to a node that it has not taken yet
# Handed on to a node and kept nowhere here until that has it: of each node.
CLUSTER_PASSED: Final = 20_000
CLUSTER_PASSED_BYTES: Final = 8 * MIB
CLUSTER_PASSED_SECONDS: Final = 1.0  # without an answer, then it is kept here: a disk that stalls
CLUSTER_PIECE: Final = 200  # kept messages in a turn, 20 to 50 us each to read and to write
CLUSTER_KEPT_BYTES: Final = CLUSTER_FRAME_BYTES // 4  # of several that one record says
CLUSTER_KEPT: Final = 1_000_000  # messages that wait for a node, 60 bytes of memory each
CLUSTER_ANEW: Final = 10_000  # clients that began anew while their node was away, 300 bytes each
CLUSTER_LEFT: Final = 10_000  # clients that went last, 300 bytes each: who was away may say a will
CLUSTER_LONG: Final = 100  # bytes of a client's name in these; of a longer one a digest is kept
CLUSTER_NAMES: Final = 1_000  # of nodes that were met, are shut out, or wait: 200 bytes each
CLUSTER_RUN: Final = 262_144  # messages in one record, which may be empty: a read has less, 60 MiB
# In one frame, 3 s of work: all that publishers say in a tick is some 100,000, and goes in several.
CLUSTER_FRAME_MESSAGES: Final = 4 * CLUSTER_RUN
CLUSTER_ASIDE_BYTES: Final = 32 * MIB  # of all nodes while the disk is behind: one alone has half
# Of all that holds of a node: what is read in one piece, in 100 ms, and together: as a message may.
CLUSTER_WHOLE: Final = 250_000
CLUSTER_WHOLE_BYTES: Final = 16 * MIB
CLUSTER_HOLDS_BYTES: Final = MESSAGE_BYTES
CLUSTER_MORE: Final = 100  # records of all that: of the longest 8, of the most entries 64
CLUSTER_TOPICS: Final = 16_384  # that other nodes said are known again: some 4 MB
CLUSTER_SLICE: Final = 1_000  # messages of a run from another node before others are heard: 3 ms
# Of frames that wait for that: each node may have as many as are free, so one alone half of all, a
# message in parts, and what it leaves is the others'. What is more is lost.
CLUSTER_UNHEARD_BYTES: Final = 2 * MESSAGE_BYTES
CLUSTER_WAY_BYTES: Final = 256 * KIB  # of a relayed connection on their way, each direction: a read
CLUSTER_LENT: Final = 20  # messages of a queue at one node's consumers: others could have them
CLUSTER_LENT_MOST: Final = 100  # where those have gone as fast: as five consumers at home have
CLUSTER_LENT_SECONDS: Final = 0.02  # as fast: others who wait for one of them wait so long
CLUSTER_LOOK: Final = 1_000  # expected queues whose home is asked for a look: 1 ms of three nodes
CLUSTER_ANSWER_SECONDS: Final = 30.0  # for what the home of a queue is asked, beside a poll's own
CLUSTER_FEED: Final = 2_000  # retained messages a look, to who missed them: some 10,000 a second
CLUSTER_COPY_PIECE: Final = 512 * KIB  # of one message of a stream: servers take a MiB as they come
CLUSTER_COPY_HEADS: Final = 1_000  # of the newest pieces are looked at by a start: some 20 ms
CLUSTER_COPY_GATHER: Final = 16  # rows on their way together, from which on the next ones wait
CLUSTER_COPY_GATHER_SECONDS: Final = 0.001  # for who was answered just now: the loop's shortest
CLUSTER_COPY_RETURN_SECONDS: Final = 0.003  # the same where all do come back: as long as a group
CLUSTER_COPY_PATIENCE: Final = 0.02  # for the answer of servers, before the next group goes anyway
CLUSTER_COPY_FAR_SECONDS: Final = 0.2  # the same of servers that are far: twice their last answer
CLUSTER_COPY_SECONDS: Final = 2.0  # without an answer, then the stream is asked how far it is
CLUSTER_QUORUM_SECONDS: Final = 10.0  # servers choose another leader within nine
CLUSTER_HEIR_SECONDS: Final = 1.0  # beside those of silence, before another node takes over
CLUSTER_ADOPT_SECONDS: Final = 50e-6  # for each thing of a dead node that goes live; 18 us
CLUSTER_BUSY_SECONDS: Final = 120  # for which an heir may be silent: two million messages
CLUSTER_RETURN_SECONDS: Final = 30.0  # the same for one that stopped in order: a restart is shorter
