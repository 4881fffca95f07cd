package engine

import (
	"os"
	"testing"
)

// Postgres returns the URL of a PostgreSQL for this test alone, which ends with it, or
// of the one that COORD_TEST_POSTGRES names: its tests keep to a schema of their own,
// and drop it.
func Postgres(t testing.TB) string {
	t.Helper()
	if url, ok := os.LookupEnv("COORD_TEST_POSTGRES"); ok && url != "" {
		report("postgres", "a server (COORD_TEST_POSTGRES)") // its URL may hold a password
		return url
	}
	s, err := startPostgres()
	if err != nil {
		report("postgres", "not run: "+err.Error())
	}
	demand(t, "postgres", err)
	t.Cleanup(s.end)
	report("postgres", s.source)
	t.Logf("postgres: %s", s.source)
	return s.url
}

// A postgres is a server that was started here.
type postgres struct {
	url, source string
	end         func() // stops it and removes its data
}
