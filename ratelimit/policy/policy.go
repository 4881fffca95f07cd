// Package policy decides which rate limits are in force: it reads policy files,
// refuses them as a whole where anything in them is wrong, and puts changed ones in
// force while the service runs.
//
// docs/policy.schema.json describes the files for editors.
package policy

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// maxFile is the size of the largest policy file, in bytes.
const maxFile = 1 << 20

// A Finding is what the author of a policy file should know.
type Finding struct {
	File   string
	Line   int    // from 1
	Field  string // for example policies[0].limits[1].rate, "" for the file as a whole
	Reason string
}

// String is "file:line: field: reason".
func (f Finding) String() string {
	if f.Field == "" {
		return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Reason)
	}
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Field, f.Reason)
}

// A MistakesError is all that is wrong with a set of policy files, by file and line.
type MistakesError struct{ Mistakes []Finding }

func (e *MistakesError) Error() string { return lines(e.Mistakes) }

func lines(findings []Finding) string {
	all := make([]string, len(findings))
	for i, f := range findings {
		all[i] = f.String()
	}
	return strings.Join(all, "\n")
}

// A Set is what policy files say.
type Set struct {
	Policies []ratelimit.Policy // by file, in their order there
	// Notes are no mistakes: limits that lie apart from the rest of their policy, so
	// that a check takes from them in a second step.
	Notes []Finding
}

// Load reads a policy file, or all *.yaml of a folder. What has another name, or one
// that begins with a dot, is left out. Errors: *MistakesError, or those of reading.
func Load(path string) (Set, error) {
	sources, err := read(path)
	if err != nil {
		return Set{}, err
	}
	return compile(sources)
}

// Parse reads the text of one policy file. The name is for the findings. Error: *MistakesError.
func Parse(name string, text []byte) (Set, error) {
	return compile([]source{{name, text}})
}

// A source is a policy file as it was read.
type source struct {
	name string
	text []byte
}

// read takes the files from the disk, by name.
func read(path string) ([]source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		text, err := readFile(path)
		return []source{{path, text}}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var sources []source
	for _, entry := range entries {
		name := filepath.Join(path, entry.Name())
		skip, err := skipped(name)
		if err != nil {
			return nil, err
		}
		if skip {
			continue
		}
		text, err := readFile(name)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source{name, text})
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s holds no *.yaml", path)
	}
	return sources, nil
}

// skipped reports what is no policy file in a folder of them. A name that looks like
// one is an error, not a limit that silently does not hold.
func skipped(name string) (bool, error) {
	base := filepath.Base(name)
	if base[0] == '.' {
		return true, nil
	}
	switch strings.ToLower(filepath.Ext(base)) {
	case ".yaml", ".yml":
	default:
		return true, nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return false, fmt.Errorf("%s is a folder, which would not be read: name it otherwise, or move its files up", name)
	}
	if filepath.Ext(base) != ".yaml" {
		return false, fmt.Errorf("%s would not be read: name it .yaml, or move it away", name)
	}
	return false, nil
}

// readFile reads a regular file, or what a link leads to. Of anything else the reading,
// and of a pipe the opening already, could wait for ever.
func readFile(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return text, nil
}

// compile makes one set of all files, or says everything that is wrong with them.
func compile(sources []source) (Set, error) {
	var set Set
	var wrong []Finding
	first := map[string]Finding{} // where a policy's name stands, by name
	for _, s := range sources {
		r := &reader{file: s.name}
		for _, c := range r.policies(s.text) {
			if other, taken := first[c.Name]; taken {
				r.wrongAt(c.name, "%q is taken by %s:%d", c.Name, other.File, other.Line)
			} else {
				first[c.Name] = r.finding(c.name, "")
			}
			set.Policies = append(set.Policies, c.Policy)
			set.Notes = append(set.Notes, c.notes...)
		}
		wrong = append(wrong, r.wrong...)
	}
	if len(wrong) > 0 {
		slices.SortFunc(wrong, func(a, b Finding) int {
			return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), strings.Compare(a.Field, b.Field), strings.Compare(a.Reason, b.Reason))
		})
		return Set{}, &MistakesError{wrong}
	}
	if err := ratelimit.CheckPolicies(set.Policies); err != nil {
		return Set{}, err // cannot be: each part was checked with its line
	}
	return set, nil
}

// same reports whether two readings found the same.
func same(a, b []source, aErr, bErr error) bool {
	if aErr != nil || bErr != nil {
		return aErr != nil && bErr != nil && aErr.Error() == bErr.Error()
	}
	return slices.EqualFunc(a, b, func(x, y source) bool { return x.name == y.name && bytes.Equal(x.text, y.text) })
}
