package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // registers pgx
	_ "modernc.org/sqlite"             // registers sqlite
)

// fenced finds the statements of the page by the comment that each begins with.
var fenced = regexp.MustCompile("(?s)```sql\n-- ([^\n]+)\n(.*?)```")

func statements(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/fencing-sql.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, found := range fenced.FindAllStringSubmatch(string(page), -1) {
		all[found[1]] = found[2]
	}
	if len(all) != 6 {
		t.Fatalf("the page has %d statements", len(all))
	}
	return all
}

// A database has the page's tables.
type database struct {
	*testing.T
	db  *sql.DB
	sql map[string]string
}

func onSQLite(t *testing.T) *database {
	// Each transaction begins with BEGIN IMMEDIATE, and waits for another's end.
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "data.db")+"?_txlock=immediate&_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return prepare(t, db)
}

func onPostgres(t *testing.T, url string, isolation sql.IsolationLevel) *database {
	schema := engine.FreshPrefix() + "fencing"
	admin, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), "DROP SCHEMA "+schema+" CASCADE"); err != nil {
			t.Error(err)
		}
		_ = admin.Close()
	})
	joint := "?"
	if strings.Contains(url, "?") {
		joint = "&"
	}
	level := strings.ReplaceAll(strings.ToLower(isolation.String()), " ", "%20")
	db, err := sql.Open("pgx", url+joint+"search_path="+schema+"&default_transaction_isolation="+level)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	var in string
	if err := db.QueryRowContext(t.Context(), "SHOW transaction_isolation").Scan(&in); err != nil || !strings.EqualFold(in, isolation.String()) {
		t.Fatalf("transactions are %q, %v", in, err)
	}
	return prepare(t, db)
}

func prepare(t *testing.T, db *sql.DB) *database {
	t.Helper()
	d := &database{t, db, statements(t)}
	for _, table := range []string{"table", "table of marks"} {
		if _, err := db.ExecContext(t.Context(), d.sql[table]); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// An executor is a database or a transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// run carries out a statement of the page and reports whether it affected a row.
func (d *database) run(on executor, name string, args ...any) (bool, error) {
	result, err := on.ExecContext(d.Context(), d.sql[name], args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if n > 1 {
		d.Errorf("%s affected %d rows", name, n)
	}
	return n == 1, err
}

func (d *database) want(why string, want bool, name string, args ...any) {
	d.Helper()
	got, err := d.run(d.db, name, args...)
	if err != nil || got != want {
		d.Errorf("%s: passed %v, %v", why, got, err)
	}
}

func (d *database) body(id string) (body string, token int64) {
	d.Helper()
	if err := d.db.QueryRowContext(d.Context(), "SELECT body, token FROM documents WHERE id = $1", id).Scan(&body, &token); err != nil {
		d.Fatal(err)
	}
	return body, token
}

// inTransaction runs what the page has a holder do: admit, then the work. It reports
// whether the token passed, and runs all again where PostgreSQL asks for that.
func (d *database) inTransaction(token int64, work func(*sql.Tx) error) (bool, error) {
	return again(func() (bool, error) { return d.once(token, work) })
}

// again repeats what PostgreSQL asks to have repeated.
func again(do func() (bool, error)) (bool, error) {
	for {
		passed, err := do()
		failure, isPostgres := errors.AsType[*pgconn.PgError](err)
		if !isPostgres || failure.Code != "40001" {
			return passed, err
		}
	}
}

func (d *database) once(token int64, work func(*sql.Tx) error) (bool, error) {
	tx, err := d.db.BeginTx(d.Context(), nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	passed, err := d.run(tx, "admit", "r", token)
	if err != nil || !passed {
		return false, err
	}
	if err := work(tx); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

// The statements are run on each database, in each isolation level that there is.
func TestFencedSQL(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		all(t, onSQLite)
	})
	t.Run("postgres", func(t *testing.T) {
		url := engine.Postgres(t)
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			t.Run(level.String(), func(t *testing.T) {
				all(t, func(t *testing.T) *database { return onPostgres(t, url, level) })
			})
		}
	})
}

func all(t *testing.T, open func(*testing.T) *database) {
	for name, test := range map[string]func(*database){
		"a row with its own mark":               rowMark,
		"a row with sequences":                  rowSequence,
		"a mark for all":                        resourceMark,
		"L15 a paused writer wakes late":        pausedWriter,
		"L15 a newer holder waits for a commit": newerHolderWaits,
		"concurrent writers to a row":           concurrentRow,
		"concurrent transactions":               concurrentTransactions,
	} {
		t.Run(name, func(t *testing.T) { test(open(t)) })
	}
}

func rowMark(d *database) {
	d.want("the first write", true, "write", "a", "one", 5)
	d.want("a stale token", false, "write", "a", "stale", 4)
	d.want("the same holder again", true, "write", "a", "two", 5)
	d.want("a newer holder", true, "write", "a", "three", 9007199254740991)
	d.want("the holder before", false, "write", "a", "stale", 5)
	d.want("another row has a mark of its own", true, "write", "b", "old", 4)
	if body, token := d.body("a"); body != "three" || token != 9007199254740991 {
		d.Errorf("stored %q under %d", body, token)
	}
}

func rowSequence(d *database) {
	d.want("the first write", true, "write in sequence", "a", "one", 5, 1)
	d.want("the next", true, "write in sequence", "a", "three", 5, 3)
	d.want("an older one of the same holder", false, "write in sequence", "a", "two", 5, 2)
	d.want("a repetition", false, "write in sequence", "a", "three", 5, 3)
	d.want("another value in its place", false, "write in sequence", "a", "other", 5, 3)
	var one int
	if err := d.db.QueryRowContext(d.Context(), d.sql["written already"], "a", "three", 5, 3).Scan(&one); err != nil {
		d.Errorf("the repetition is not recognized: %v", err)
	}
	if err := d.db.QueryRowContext(d.Context(), d.sql["written already"], "a", "other", 5, 3).Scan(&one); !errors.Is(err, sql.ErrNoRows) {
		d.Errorf("the other value: %v", err)
	}
	d.want("a write without a number", true, "write", "a", "four", 5)
	d.want("an older one is not let in by that", false, "write in sequence", "a", "two", 5, 2)
	d.want("a newer holder without numbers", true, "write", "a", "plain", 6)
	d.want("which may begin to number", true, "write in sequence", "a", "first", 6, 1)
	d.want("a newer holder begins at 1", true, "write in sequence", "a", "new", 7, 1)
	d.want("a stale holder with a large sequence", false, "write in sequence", "a", "stale", 5, 100)
	if body, token := d.body("a"); body != "new" || token != 7 {
		d.Errorf("stored %q under %d", body, token)
	}
}

func resourceMark(d *database) {
	write := func(body string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			for _, id := range []string{"a", "b"} {
				if _, err := tx.ExecContext(d.Context(), "INSERT INTO documents (id, body, token) VALUES ($1, $2, 0) ON CONFLICT (id) DO UPDATE SET body = excluded.body", id, body); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, step := range []struct {
		why   string
		token int64
		want  bool
	}{
		{"the first holder", 5, true},
		{"the same one again", 5, true},
		{"a stale one", 4, false},
		{"a newer one", 6, true},
		{"the one before", 5, false},
	} {
		if passed, err := d.inTransaction(step.token, write(step.why)); err != nil || passed != step.want {
			d.Errorf("%s: passed %v, %v", step.why, passed, err)
		}
	}
	for _, id := range []string{"a", "b"} {
		if body, _ := d.body(id); body != "a newer one" {
			d.Errorf("stored in %s: %q", id, body)
		}
	}
	if passed, err := d.inTransaction(6, func(tx *sql.Tx) error {
		if err := write("undone")(tx); err != nil {
			return err
		}
		return errors.New("the work fails")
	}); passed || err == nil {
		d.Errorf("work that failed: passed %v, %v", passed, err)
	}
	if body, _ := d.body("a"); body != "a newer one" {
		d.Errorf("after work that failed: %q", body)
	}
}

// A writer decides on its write, pauses, and sends it once another has the lease.
func pausedWriter(d *database) {
	d.want("the first holder", true, "write", "a", "first", 1)
	decided, resume := make(chan struct{}), make(chan struct{})
	type outcome struct {
		passed bool
		err    error
	}
	late := make(chan outcome)
	go func() {
		body := "first, late" // what it decided to write, while it held the lease
		close(decided)
		<-resume
		passed, err := d.run(d.db, "write", "a", body, 1)
		late <- outcome{passed, err}
	}()
	<-decided
	d.want("a new holder", true, "write", "a", "second", 2)
	if passed, err := d.inTransaction(2, func(*sql.Tx) error { return nil }); err != nil || !passed {
		d.Fatalf("the new holder admits its token: %v, %v", passed, err)
	}
	close(resume)
	if o := <-late; o.passed || o.err != nil {
		d.Errorf("the writer that slept: passed %v, %v", o.passed, o.err)
	}
	if passed, err := d.inTransaction(1, func(*sql.Tx) error { return errors.New("it works") }); passed || err != nil {
		d.Errorf("its transaction: passed %v, %v", passed, err)
	}
	if body, _ := d.body("a"); body != "second" {
		d.Errorf("stored %q", body)
	}
}

// A holder that pauses within its transaction, after its token passed, is followed by a
// newer one, never overtaken: the newer one sees what it wrote.
func newerHolderWaits(d *database) {
	d.want("something is there", true, "write", "a", "before", 1)
	admitted, resume := make(chan struct{}), make(chan struct{})
	first := make(chan error)
	go func() {
		told := false
		passed, err := d.inTransaction(1, func(tx *sql.Tx) error {
			if !told {
				told = true
				close(admitted)
				<-resume
			}
			_, err := tx.ExecContext(d.Context(), "UPDATE documents SET body = 'first' WHERE id = 'a'")
			return err
		})
		if err == nil && !passed {
			err = errors.New("its token did not pass")
		}
		first <- err
	}()
	<-admitted
	saw := ""
	second := make(chan error)
	go func() {
		passed, err := d.inTransaction(2, func(tx *sql.Tx) error {
			return tx.QueryRowContext(d.Context(), "SELECT body FROM documents WHERE id = 'a'").Scan(&saw)
		})
		if err == nil && !passed {
			err = errors.New("its token did not pass")
		}
		second <- err
	}()
	select {
	case err := <-second:
		close(resume)
		d.Errorf("the newer one did not wait: %v; the first: %v", err, <-first)
		return
	case <-time.After(200 * time.Millisecond): // it waits, or has not begun: both are right
	}
	close(resume)
	if err := errors.Join(<-first, <-second); err != nil || saw != "first" {
		d.Errorf("the newer one saw %q, %v", saw, err)
	}
	if passed, err := d.inTransaction(1, func(*sql.Tx) error { return nil }); passed || err != nil {
		d.Errorf("the one before, afterwards: passed %v, %v", passed, err)
	}
}

const writers, rounds = 20, 10

// race has each writer write with a token of its own, all at once, and hands over who passed.
func (d *database) race(write func(token int64) (bool, error)) (passed map[int64]bool) {
	var mu sync.Mutex
	passed = map[int64]bool{}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for token := int64(1); token <= writers; token++ {
		wg.Go(func() {
			<-start
			ok, err := write(token)
			if err != nil {
				d.Errorf("token %d: %v", token, err)
			}
			mu.Lock()
			defer mu.Unlock()
			passed[token] = ok
		})
	}
	close(start)
	wg.Wait()
	return passed
}

func concurrentRow(d *database) {
	refused := 0
	for round := range rounds {
		id := fmt.Sprint("doc", round)
		passed := d.race(func(token int64) (bool, error) {
			return again(func() (bool, error) { return d.run(d.db, "write", id, fmt.Sprint("by ", token), token) })
		})
		body, token := d.body(id)
		if !passed[writers] || token != writers || body != fmt.Sprint("by ", writers) {
			d.Errorf("round %d: stored %q under %d, the newest passed: %v", round, body, token, passed[writers])
		}
		for _, ok := range passed {
			if !ok {
				refused++
			}
		}
	}
	d.Logf("%d of %d writes were stale", refused, writers*rounds)
}

// Every transaction notes its token in a log: those that passed must be in order of their tokens.
func concurrentTransactions(d *database) {
	if _, err := d.db.ExecContext(d.Context(), "CREATE TABLE log (round BIGINT NOT NULL, at BIGINT NOT NULL, token BIGINT NOT NULL)"); err != nil {
		d.Fatal(err)
	}
	for round := range rounds {
		if _, err := d.db.ExecContext(d.Context(), "DELETE FROM fences"); err != nil {
			d.Fatal(err)
		}
		passed := d.race(func(token int64) (bool, error) {
			return d.inTransaction(token, func(tx *sql.Tx) error {
				var n int64
				if err := tx.QueryRowContext(d.Context(), "SELECT count(*) FROM log WHERE round = $1", round).Scan(&n); err != nil {
					return err
				}
				_, err := tx.ExecContext(d.Context(), "INSERT INTO log (round, at, token) VALUES ($1, $2, $3)", round, n, token)
				return err
			})
		})
		rows, err := d.db.QueryContext(d.Context(), "SELECT at, token FROM log WHERE round = $1 ORDER BY at, token", round)
		if err != nil {
			d.Fatal(err)
		}
		n, last := int64(0), int64(0)
		for ; rows.Next(); n++ {
			var at, token int64
			if err := rows.Scan(&at, &token); err != nil {
				d.Fatal(err)
			}
			if at != n || token <= last || !passed[token] {
				d.Errorf("round %d: entry %d is the %d. and of token %d, after %d", round, n, at, token, last)
			}
			last = token
		}
		if err := rows.Err(); err != nil || last != writers {
			d.Errorf("round %d: the last entry is of token %d, %v", round, last, err)
		}
	}
}
