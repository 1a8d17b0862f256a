"""The points of the time–sequence graphs of a few streams."""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from tunnel.analysis.flow import ACKED, RECEIVED, SENT, unwrapped

__all__ = ["COLUMNS", "ROWS", "points_of"]

COLUMNS, ROWS = 480, 240  # of cells in a graph; a drawn point covers about one cell


def points_of(flow: DataFrame, streams: list[int]) -> DataFrame:
    """Return the points of the graphs of these streams: packets sent, sent again, received and acknowledged.

    Each graph is divided into cells. Of the points of one kind in a cell, the first is returned: the others would lie
    under it. So how much is drawn of a stream does not depend on the other streams, and repeats are always drawn.
    """
    stream = Window.partitionBy("stream")
    base = F.min_by("sequence", F.when(F.col("kind") == SENT, F.col("t"))).over(stream)
    shown = flow.where(F.col("stream").isin(streams) & F.col("kind").isin(SENT, RECEIVED, ACKED))
    placed = shown.withColumn(
        "position", unwrapped(F.col("sequence"), F.coalesce(base, F.min("sequence").over(stream)))
    )
    cells = placed.withColumns(
        {
            name: F.floor(
                (F.col(value) - F.min(value).over(stream)) * count / F.greatest(_span(value, stream), F.lit(1))
            )
            for name, value, count in (("column", "t", COLUMNS), ("row", "position", ROWS))
        }
    )
    return (
        cells.groupBy("stream", "kind", (F.col("attempt") > 0).alias("repeated"), "column", "row")
        .agg(F.min(F.struct("t", "sequence", "attempt", "cause")).alias("point"))
        .select("stream", "kind", "point.*")
    )


def _span(value: str, stream: WindowSpec) -> Column:
    return F.max(value).over(stream) - F.min(value).over(stream)
