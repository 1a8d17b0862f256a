"""The analysis of traces, by DuckDB or Spark. Nothing else in tunnel imports this package.

An engine turns trace files into tables, and the tables into a result of a few plain rows. Plain Python turns the result
into a page. docs/ANALYSIS.md explains the page to its readers. DuckDB needs the extra "analysis", Spark "spark".

Where to start
--------------

`cli.py` for the order of the steps, `analyse.py` for the order of the queries, `sections.py` for the page.

    cli.py                the command `tunnel-traces`; bounds.py has bounds on key figures, for CI, qlog.py the export
    engines/              what runs the queries
      launch.py           chooses the engine and starts it; engine.py says what one does; failures.py words its errors
      duck.py, spark.py   the two engines; session.py has Spark's settings
      folders.py, hadoop.py   reach the data; schema.py has its columns, from the trace record
      queries.py          the files of SQL in sql/, with their parameters
    kept/                 from trace files to tables
      intake.py           finds new files, checks them, decides what is to be added; known.py recognises content
      ingest.py           adds each event exactly once; upkeep.py merges small folders, and removes old days
      ledger.py           which files the tables contain, and which data belongs to them: records and checkpoints
      derived.py          stores the tables of streams, so that the next report computes only those that have changed
    sql/                  the queries; each file says its columns and units
      records, events     all lines with their defaults; the events that count, in one common time
      flow, packets       the tables that most queries read: one row for each packet, with what became of it
      streams, steps, stalls   one row for each stream; the sender's steps; its silences and their causes
    results/              from tables to a result
      analyse.py          runs all queries, and keeps the tables that several of them read
      clocks.py, holes.py the common time of all writers; times without records
      result.py           the plain values; result_cache.py keeps those of the last report
      selection.py        the part of a trace that a report is about
      tables.py, measures.py, limits.py   tables, key figures, and what kept senders from sending, in plain Python
    verdicts/             blame.py and families.py share the senders' time among causes; verdict.py says it in sentences
    page/                 report.py is the page, sections.py its order; stalls_section.py and streams_section.py are two
      section.py, data.py, draw.js   the section in which a connection is chosen and drawn
      figures.py, pieces.py, svg.py, style.py   what sections are made of
    words.py              numbers and causes in a form for people
    answers/              compare.py: what changed between two traces; one_connection.py: what happened to one

How a loss gets into the report
-------------------------------

The query `packets` joins what the sender did with what arrived, by (connection, peer, sequence, attempt).
`loss_stages` says where first attempts were lost: before the relay had the batch, in the relay, or after it.
`steps` and `stalls` find the time that this took from the sender, `blame` gives that time to a family, and `verdict`
says it in a sentence. A fact that the trace does not show is unknown, and never guessed.
"""

__all__: list[str] = []
