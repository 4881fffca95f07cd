package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// Whatever a file holds: it is refused with places that are in it, or the limiter
// takes its policies and the schema has nothing against it.
func FuzzParse(f *testing.F) {
	for _, c := range fileCases {
		f.Add([]byte(c.text))
	}
	files, err := filepath.Glob(examples + "/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	s := schema(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		set, err := Parse("f.yaml", text)
		if err != nil {
			wrong, ok := errors.AsType[*MistakesError](err)
			if !ok || len(wrong.Mistakes) == 0 {
				t.Fatalf("got %v, which names no line", err)
			}
			for _, m := range wrong.Mistakes {
				if m.Line < 1 || m.Line > 2+strings.Count(string(text), "\n")+strings.Count(string(text), "\r") || m.Reason == "" {
					t.Errorf("%+v is nowhere in the file", m)
				}
			}
			return
		}
		if _, err := ratelimit.New(nil, set.Policies, ratelimit.Options{}); err != nil {
			t.Errorf("the limiter refuses them: %v", err)
		}
		if err := fits(s, text); err != nil {
			t.Errorf("the schema refuses them: %v", err)
		}
	})
}
