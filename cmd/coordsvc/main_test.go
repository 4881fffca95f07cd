package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
)

// Help and version are what was asked for: they go to stdout, and are no failure.
func TestHelpAndVersionAreAnswers(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--help", "coordsvc policy lint FILE|DIR"},
		{"-h", "coordsvc policy lint FILE|DIR"},
		{"help", "coordsvc policy lint FILE|DIR"},
		{"version", "coordsvc "},
		{"--version", "coordsvc "},
		{"policy --help", "usage: coordsvc policy lint"},
		{"policy lint --help", "coordsvc policy lint FILE|DIR"},
		{"policy explain --help", "-descriptor"},
		{"keys --help", "usage: coordsvc keys create"},
		{"keys -h", "usage: coordsvc keys create"},
		{"keys create --help", "-expires-in"},
		{"tables --help", "usage: coordsvc tables create"},
		{"tables create --help", "-dynamodb"},
		{"tables raise-floor -help", "-to"},
		{"serve --help", "-x-ratelimit"},
		{"backup --help", "-data-dir"},
		{"doctor --help", "-data-dir"},
		{"healthcheck --help", "-ops-addr"},
	} {
		var out, errOut bytes.Buffer
		err := run(t.Context(), strings.Fields(c.args), func(string) string { return "" }, &out, &errOut, func(addresses) {})
		if err != nil && !errors.Is(err, flag.ErrHelp) { // which main ends with 0
			t.Errorf("%s: %v", c.args, err)
		}
		if !strings.Contains(out.String(), c.says) || errOut.Len() > 0 {
			t.Errorf("%s: stdout %q, stderr %q; want %q", c.args, out.String(), errOut.String(), c.says)
		}
	}
	for args, says := range map[string]string{"": "name a command", "policy": "usage", "keys": "usage", "tables drop": "usage", "--verson": "no command"} {
		var out, errOut bytes.Buffer
		err := run(t.Context(), strings.Fields(args), func(string) string { return "" }, &out, &errOut, func(addresses) {})
		if err == nil || !strings.Contains(err.Error(), says) || out.Len() > 0 {
			t.Errorf("%q: %v, stdout %q", args, err, out.String())
		}
	}
}
