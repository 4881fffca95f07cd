package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// A store that is down for long is told of once, and its return too.
func TestSweepLogTellsOfChanges(t *testing.T) {
	var out bytes.Buffer
	report := sweepLog(slog.New(slog.NewTextHandler(&out, nil)), "quotas")
	for _, err := range []error{nil, errors.New("down"), errors.New("down still"), nil, nil, errors.New("down again")} {
		report(0, err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		_, msg, _ := strings.Cut(strings.TrimSpace(line), "msg=")
		got = append(got, msg)
	}
	want := []string{`"sweeps fail" of=quotas error=down`, `"sweeps work again" of=quotas`, `"sweeps fail" of=quotas error="down again"`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q", got)
	}
}
