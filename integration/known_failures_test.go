package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	failureRow = regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \|.*\| (.+) \|$`)
	testInRow  = regexp.MustCompile("`((?:Test|Fuzz|Example)\\w*)`")
	idInName   = regexp.MustCompile(`[RLS]\d+`)
)

// Every row of docs/known-failures.md names tests that exist and carry its id, or
// says why it needs none; and every id that a test carries has a row, in a part of
// the page that exists.
func TestKnownFailuresNameTheirTests(t *testing.T) {
	page, err := os.ReadFile("../docs/known-failures.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := listTests(t)
	rows, parts := map[string]bool{}, map[byte]bool{}
	for _, row := range failureRow.FindAllStringSubmatch(string(page), -1) {
		id, kept := row[1], row[2]
		if rows[id] {
			t.Errorf("%s has two rows", id)
		}
		rows[id], parts[id[0]] = true, true
		named := testInRow.FindAllStringSubmatch(kept, -1)
		if len(named) == 0 && !strings.HasPrefix(kept, "None: ") {
			t.Errorf("%s names no test and gives no reason", id)
		}
		for _, name := range named {
			if !slices.Contains(tests, name[1]) {
				t.Errorf("%s names %s, which is no test", id, name[1])
			}
			if !slices.Contains(idInName.FindAllString(name[1], -1), id) {
				t.Errorf("%s names %s, which does not carry its id", id, name[1])
			}
		}
	}
	if len(rows) < 30 {
		t.Errorf("%d rows were found in the page", len(rows))
	}
	for _, name := range tests {
		for _, id := range idInName.FindAllString(name, -1) {
			if parts[id[0]] && !rows[id] {
				t.Errorf("%s carries the id %s, which has no row", name, id)
			}
		}
	}
}

// listTests lists the tests of the module that carry an id. It reads the files that go
// test would build, since building them all takes minutes.
func listTests(t *testing.T) []string {
	t.Helper()
	const files = `{{range .TestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", files, "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var tests []string
	for path := range strings.FieldsSeq(string(out)) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && isTest(f) && idInName.MatchString(f.Name.Name) {
				tests = append(tests, f.Name.Name)
			}
		}
	}
	return tests
}

// isTest reports whether go test runs the function: by its name and its one argument.
func isTest(f *ast.FuncDecl) bool {
	kind := map[string]string{"T": "Test", "F": "Fuzz"}
	if f.Recv != nil || f.Type.Params.NumFields() != 1 {
		return strings.HasPrefix(f.Name.Name, "Example") && f.Recv == nil
	}
	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	of, ok := pointer.X.(*ast.SelectorExpr)
	return ok && kind[of.Sel.Name] != "" && strings.HasPrefix(f.Name.Name, kind[of.Sel.Name])
}
