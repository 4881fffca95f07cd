package policy

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	schemaFile = "../../docs/policy.schema.json"
	examples   = "../../examples/policies"
)

func schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	raw, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fits judges a text by the schema alone.
func fits(s *jsonschema.Schema, text []byte) error {
	raw, err := yaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// The schema refuses nothing that is right, and of what is wrong it accepts only
// what a schema cannot tell.
func TestTheSchemaAgreesWithTheParser(t *testing.T) {
	s := schema(t)
	for _, c := range fileCases {
		bySchema := fits(s, []byte(c.text))
		switch {
		case c.beyond:
		case len(c.says) == 0 && bySchema != nil:
			t.Errorf("%s: the schema refuses what is right: %v", c.why, bySchema)
		case len(c.says) > 0 && bySchema == nil:
			t.Errorf("%s: the schema accepts it", c.why)
		}
	}
}

func TestTheExamplesAreRight(t *testing.T) {
	s := schema(t)
	set, err := Load(examples)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Policies) < 12 || len(set.Notes) > 0 {
		t.Errorf("%d policies, notes: %v", len(set.Policies), set.Notes)
	}
	files, err := filepath.Glob(examples + "/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := fits(s, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Parse(name, text); err != nil {
			t.Error(err)
		}
	}
}
