-- The writers (writer: the name) of records about the connections that a report is about.
-- Reads: whole, wanted, writers.
select distinct writers.writer
from whole
join wanted on whole.connection = wanted.id
join writers on whole.writer_id = writers.writer_id
