// The skipcheck command decides whether a test run counts as complete: it reads
// `go test -json` from standard input, prints what go test would have printed and
// a last line "N passed, N failed, N skipped", and exits 1 if a test failed or
// was skipped, or if none ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	s := newSummary(os.Stdout)
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "skipcheck:", err)
		os.Exit(2)
	}
	if !s.close() {
		os.Exit(1)
	}
}

// An event is one line of `go test -json`; see `go doc test2json` and `go help buildjson`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a package that does not build
	Test       string // empty for the package as a whole
	Output     string
}

// A test is named by its package and its name in there.
type test struct{ pkg, name string }

// A summary prints a run as it goes and counts its tests, subtests included.
type summary struct {
	w       io.Writer
	running map[test][]string // what the tests under way have printed
	pkgs    map[string]*pkg

	passed, failed, skipped int
}

// A pkg is what is known of a package whose end has not been read.
type pkg struct {
	output []string
	failed bool // one of its tests has failed
}

func newSummary(w io.Writer) *summary {
	return &summary{w: w, running: map[test][]string{}, pkgs: map[string]*pkg{}}
}

// read takes in a whole run.
func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				s.print(string(line)) // the go command's own words
			} else {
				s.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
}

func (s *summary) take(e event) {
	switch {
	case e.ImportPath != "":
		s.print(e.Output)
	case e.Test != "":
		s.takeTest(e)
	default:
		s.takePackage(e)
	}
}

func (s *summary) takeTest(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "run":
		s.running[t] = nil
	case "output":
		s.running[t] = append(s.running[t], e.Output)
	case "pass":
		s.passed++
		delete(s.running, t)
	case "fail":
		s.failed++
		s.of(e.Package).failed = true
		s.show(t)
	case "skip":
		s.skipped++
		s.show(t)
	}
}

// show prints what a test that did not pass has printed, without go test's marks of its progress.
func (s *summary) show(t test) {
	for _, line := range s.running[t] {
		if !strings.HasPrefix(line, "=== ") {
			s.print(line)
		}
	}
	delete(s.running, t)
}

func (s *summary) takePackage(e event) {
	p := s.of(e.Package)
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
	case "pass", "skip": // skip: it has no tests
		for _, line := range p.output {
			if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t") {
				s.print(line)
			}
		}
		delete(s.pkgs, e.Package)
	case "fail":
		s.abort(e.Package, p)
		s.print(strings.Join(p.output, ""))
		delete(s.pkgs, e.Package)
	}
}

// abort counts as failed the tests that the end of their package cut off; a
// package that fails by itself, as one that does not build, counts as one.
func (s *summary) abort(name string, p *pkg) {
	cut := slices.DeleteFunc(slices.Collect(maps.Keys(s.running)), func(t test) bool { return t.pkg != name })
	slices.SortFunc(cut, func(a, b test) int { return strings.Compare(a.name, b.name) })
	for _, t := range cut {
		s.failed++
		p.failed = true
		s.show(t)
	}
	if !p.failed {
		s.failed++
	}
}

func (s *summary) of(name string) *pkg {
	if s.pkgs[name] == nil {
		s.pkgs[name] = &pkg{}
	}
	return s.pkgs[name]
}

func (s *summary) print(text string) {
	_, _ = io.WriteString(s.w, text) // the exit code tells the outcome all the same
}

// close prints the last line and reports whether the run is complete: every test
// ran to its end and passed, and there was one.
func (s *summary) close() bool {
	for _, name := range slices.Sorted(maps.Keys(s.pkgs)) { // the go command itself was cut off
		s.abort(name, s.pkgs[name])
		s.print("FAIL\t" + name + " [no result]\n")
	}
	s.print(fmt.Sprintf("%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped))
	return s.failed == 0 && s.skipped == 0 && s.passed > 0
}
