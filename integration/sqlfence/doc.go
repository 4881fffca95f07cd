// Package sqlfence decides, in its tests, whether the statements of docs/fencing-sql.md
// refuse every stale writer on SQLite and on PostgreSQL.
package sqlfence
