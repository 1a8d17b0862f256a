"""The settings of Spark for tiny data: without generated code, which takes longer to compile than it saves."""

__all__ = ["SETTINGS", "SHORT_LIVED"]

# A Java process of the tests spends most of its time on loading Spark's classes. So it does without the second
# compiler, and without the check of the classes' bytecode, which pip installed. The compiled code of one session with
# many queries does not fit into the 48 MB that Java has for it then, nor do pages of 32 MB for each tiny table into
# 1 GB of memory: Java collected garbage for half of the time.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-XX:ReservedCodeCacheSize=160m"
)
SETTINGS = {
    "spark.buffer.pageSize": "1m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.default.parallelism": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
