"""The analysis of traces with Spark. Nothing else in tunnel imports this package; it needs the extra "analysis".

Spark turns trace files into tables, and the tables into a result of a few plain rows. Plain Python turns the result
into a page. docs/ANALYSIS.md explains the page to its readers.

Where to start
--------------

`cli.py` for the order of the steps, `analyse.py` for the order of the analyses, `sections.py` for the page.

    from trace files to tables
      cli.py              the command `tunnel-traces`; launch.py and session.py start Spark
      intake.py           finds new files, checks them, decides what is to be added; known.py recognises content
      ingest.py           adds each event exactly once
      ledger.py           which files the tables contain, and which data belongs to them
      schema.py           the columns, from the trace record; folders.py and hadoop.py reach the data
    from tables to a result
      analyse.py          runs all analyses; kept.py keeps tables that several share
      alignment.py, clocks.py   one common time for all writers
      holes.py, hole_queries.py   times without records
      flow.py             the table that most analyses need: one row for each packet, with what became of it
      network.py          losses, where they happened, bursts, reordering, repairs
      timing.py, limits.py, stalls.py   round trips; what kept senders from sending; silences and their causes
      counts.py, graphs.py   counts over all events; points of graphs
      expressions.py      columns that several of them use, such as "dropped by the relay"
      result.py           the plain values; result_cache.py keeps those of the last report
    from a result to the page
      tables.py, figures.py   tables and key figures, in plain Python
      blame.py, families.py   the senders' time, shared out among families of causes
      verdict.py          the sentences at the top
      report.py, sections.py   the page and its sections; stalls_section.py and streams_section.py are two of them
      pieces.py, svg.py, style.py, words.py   what sections are made of
    besides
      qlog.py             the export; failures.py puts errors of Spark into one line

How a loss gets into the report
-------------------------------

`flow.packets_of` joins what the sender did with what arrived, by (connection, peer, sequence, attempt).
`network.loss_stages` says where first attempts were lost: before the relay had the batch, in the relay, or after it.
`limits` and `stalls` find the time that this took from the sender, `blame` gives that time to a family, and `verdict`
says it in a sentence. A fact that the trace does not show is unknown, and never guessed.
"""

__all__: list[str] = []
