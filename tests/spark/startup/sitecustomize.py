"""Python runs this as it starts, where this folder is on its path: no PySpark from a zip.

For the Pythons that a cluster of Spark, or a Connect server, starts in tests: `tests.spark.cluster`
names the folder. From its zip each of them compiles PySpark anew, two thirds of what one costs, and
a test has twenty. What they find instead is the same PySpark. `hubbub.spark.start` has the same for
a Spark that is all its own, and test_source has a Python with the zip.
"""

import sys

sys.path[:] = [one for one in sys.path if not one.endswith(("/pyspark.zip", "-src.zip"))]
