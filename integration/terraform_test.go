package integration

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"

	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/idempotency/dynamoidempotency"
	"github.com/coordsvc/coordsvc/internal/audit/dynamoaudit"
	"github.com/coordsvc/coordsvc/internal/auth/dynamoauth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
	"github.com/coordsvc/coordsvc/quota/dynamoquota"
	"github.com/coordsvc/coordsvc/session/dynamosession"
)

const terraformDir = "../infra/terraform"

// codeTables are the tables that the code creates.
func codeTables(prefix string) []dynamo.Table {
	one := []dynamo.Table{dynamolease.Table(prefix), dynamofence.Table(prefix), dynamoauth.Table(prefix), dynamoaudit.Table(prefix), dynamosession.Table(prefix), dynamoidempotency.Table(prefix)}
	return append(one, dynamoquota.Tables(prefix)...)
}

// Terraform's tables and the code's are the same ones, and every table that the
// registry names is among them.
func TestTerraformTables(t *testing.T) {
	m := readModule(t)
	// A prefix that is nobody's default, so that the variable must be used.
	m.set("table_prefix", cty.StringVal("other-"))
	got := map[string]dynamo.Table{}
	for _, block := range m.resources("aws_dynamodb_table") {
		table := m.table(block)
		if _, twice := got[table.Name]; twice {
			t.Errorf("%s: a second table %s", block.DefRange(), table.Name)
		}
		got[table.Name] = table
	}
	for _, want := range codeTables("other-") {
		if want, have := normal(want), got[want.Name]; !reflect.DeepEqual(have, want) {
			t.Errorf("table %s is in Terraform\n%+v\nand in the code\n%+v", want.Name, have, want)
		}
		delete(got, want.Name)
	}
	for name := range got {
		t.Errorf("table %s is in Terraform and not in the code", name)
	}
	for _, kind := range keytype.All() {
		isCreated := func(table dynamo.Table) bool { return table.Name == kind.TableName("other-") }
		if kind.Table != "" && !slices.ContainsFunc(codeTables("other-"), isCreated) {
			t.Errorf("key type %s lives in table %q, which nothing creates", kind.Name, kind.Table)
		}
	}
}

// What every table has besides, whatever it holds.
func TestTerraformTablesAreProtected(t *testing.T) {
	m := readModule(t)
	key := cty.StringVal("arn:aws:kms:eu-central-1:123456789012:key/0")
	for _, mode := range []string{"PAY_PER_REQUEST", "PROVISIONED"} {
		for _, protected := range []cty.Value{cty.True, cty.False} {
			m.set("billing_mode", cty.StringVal(mode))
			m.set("deletion_protection", protected)
			m.set("kms_key_arn", key)
			m.set("tags", cty.MapVal(map[string]cty.Value{"k": cty.StringVal("v")}))
			capacity := cty.NullVal(cty.Number)
			if mode == "PROVISIONED" {
				capacity = cty.NumberIntVal(25)
			}
			for _, block := range m.resources("aws_dynamodb_table") {
				m.expect(block.Body, "billing_mode", cty.StringVal(mode))
				m.expect(block.Body, "read_capacity", capacity)
				m.expect(block.Body, "write_capacity", capacity)
				m.expect(block.Body, "deletion_protection_enabled", protected)
				m.expect(block.Body, "tags", m.variable("tags"))
				m.expect(m.one(block.Body, "point_in_time_recovery"), "enabled", cty.True)
				m.expect(m.one(block.Body, "server_side_encryption"), "enabled", cty.True)
				m.expect(m.one(block.Body, "server_side_encryption"), "kms_key_arn", key)
				for _, index := range blocks(block.Body, "global_secondary_index") {
					m.expect(index.Body, "read_capacity", capacity)
					m.expect(index.Body, "write_capacity", capacity)
				}
			}
		}
	}
}

func TestTerraformVariables(t *testing.T) {
	str := cty.StringVal
	cases := []struct {
		name  string
		value cty.Value
		ok    bool
	}{
		{"table_prefix", str("coord_"), true},
		{"table_prefix", str("a"), true},
		{"table_prefix", str(""), false}, // the service refuses it as well
		{"table_prefix", str(strings.Repeat("a", 200)), true},
		{"table_prefix", str(strings.Repeat("a", 201)), false},
		{"table_prefix", str("a b"), false},
		{"table_prefix", str("a\n"), false},
		{"billing_mode", str("PAY_PER_REQUEST"), true},
		{"billing_mode", str("PROVISIONED"), true},
		{"billing_mode", str("pay_per_request"), false},
		{"read_capacity", cty.NumberIntVal(1), true},
		{"read_capacity", cty.NumberIntVal(0), false},
		{"read_capacity", cty.NumberFloatVal(1.5), false},
		{"write_capacity", cty.NumberIntVal(1), true},
		{"write_capacity", cty.NumberIntVal(0), false},
		{"write_capacity", cty.NumberFloatVal(1.5), false},
		{"kms_key_arn", cty.NullVal(cty.String), true},
		{"kms_key_arn", str("arn:aws:kms:eu-central-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"), true},
		{"kms_key_arn", str("arn:aws-us-gov:kms:us-gov-west-1:123456789012:key/mrk-0"), true},
		{"kms_key_arn", str("arn:aws:kms:eu-central-1:123456789012:alias/a"), false},
		{"kms_key_arn", str("1234abcd-12ab-34cd-56ef-1234567890ab"), false},
		{"kms_key_arn", str(""), false},
	}
	for _, c := range cases {
		m := readModule(t)
		m.set(c.name, c.value)
		if got := m.valid(c.name); got != c.ok {
			t.Errorf("%s = %#v: valid is %v, want %v", c.name, c.value, got, c.ok)
		}
	}
	m := readModule(t)
	for name := range m.variables {
		if !m.valid(name) {
			t.Errorf("%s: its default is not valid", name)
		}
	}
	if got := m.variable("table_prefix").AsString(); got != "coord_" {
		t.Errorf("the default prefix is %q, the service's is coord_", got)
	}
}

// The page names what the files declare, and the files explain what they declare.
func TestTerraformReadme(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(terraformDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := readModule(t)
	for kind, heading := range map[string]string{"variable": "## Inputs", "output": "## Outputs"} {
		_, section, _ := strings.Cut(string(raw), heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		var named, declared []string
		for line := range strings.Lines(section) {
			if rest, ok := strings.CutPrefix(line, "| `"); ok {
				name, _, _ := strings.Cut(rest, "`")
				named = append(named, name)
			}
		}
		for _, block := range m.blocks(kind) {
			declared = append(declared, block.Labels[0])
			if block.Body.Attributes["description"] == nil {
				t.Errorf("%s: no description", block.DefRange())
			}
		}
		slices.Sort(named)
		slices.Sort(declared)
		if len(named) == 0 || !slices.Equal(named, declared) {
			t.Errorf("%s: the page names %v, the files %v", heading, named, declared)
		}
	}
	for _, output := range []string{"table_names", "table_arns"} {
		if got, want := m.outputKeys(output), len(m.resources("aws_dynamodb_table")); got != want {
			t.Errorf("output %s has %d tables, want %d", output, got, want)
		}
	}
}

// A module is the parsed folder and what its expressions are evaluated with.
type module struct {
	t         *testing.T
	bodies    []*hclsyntax.Body
	variables map[string]cty.Value
}

func readModule(t *testing.T) *module {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(terraformDir, "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files: %v, %v", files, err)
	}
	m := &module{t: t, variables: map[string]cty.Value{}}
	parser := hclparse.NewParser()
	for _, name := range files {
		file, diags := parser.ParseHCLFile(name)
		m.check(diags)
		m.bodies = append(m.bodies, file.Body.(*hclsyntax.Body))
	}
	for _, block := range m.blocks("variable") {
		if block.Body.Attributes["default"] == nil {
			t.Fatalf("%s: no default", block.DefRange())
		}
		m.variables[block.Labels[0]] = m.value(block.Body, "default")
	}
	return m
}

func (m *module) check(diags hcl.Diagnostics) {
	m.t.Helper()
	if diags.HasErrors() {
		m.t.Fatal(diags)
	}
}

func (m *module) set(name string, v cty.Value) {
	m.t.Helper()
	if _, ok := m.variables[name]; !ok {
		m.t.Fatalf("no variable %s", name)
	}
	m.variables[name] = v
}

func (m *module) variable(name string) cty.Value { return m.variables[name] }

func (m *module) blocks(kind string) (all []*hclsyntax.Block) {
	for _, body := range m.bodies {
		all = append(all, blocks(body, kind)...)
	}
	return all
}

func (m *module) resources(kind string) []*hclsyntax.Block {
	m.t.Helper()
	all := slices.DeleteFunc(m.blocks("resource"), func(b *hclsyntax.Block) bool { return b.Labels[0] != kind })
	for _, block := range all {
		if block.Body.Attributes["count"] != nil || block.Body.Attributes["for_each"] != nil || len(blocks(block.Body, "dynamic")) > 0 {
			m.t.Fatalf("%s: this test reads plain resources only", block.DefRange())
		}
	}
	if len(all) == 0 {
		m.t.Fatalf("no %s", kind)
	}
	return all
}

// scope holds the variables, and locals that build on them alone or on other locals before them.
func (m *module) scope() *hcl.EvalContext {
	ctx := &hcl.EvalContext{
		Variables: map[string]cty.Value{"var": cty.ObjectVal(m.variables)},
		Functions: map[string]function.Function{
			"can": tryfunc.CanFunc, "contains": stdlib.ContainsFunc, "floor": stdlib.FloorFunc, "regex": stdlib.RegexFunc,
		},
	}
	locals := map[string]cty.Value{}
	for _, block := range m.blocks("locals") {
		inOrder := slices.SortedFunc(maps.Values(block.Body.Attributes), func(a, b *hclsyntax.Attribute) int {
			return cmp.Compare(a.SrcRange.Start.Line, b.SrcRange.Start.Line)
		})
		for _, attr := range inOrder {
			ctx.Variables["local"] = cty.ObjectVal(locals)
			v, diags := attr.Expr.Value(ctx)
			m.check(diags)
			locals[attr.Name] = v
		}
	}
	ctx.Variables["local"] = cty.ObjectVal(locals)
	return ctx
}

// value evaluates an argument, null where it is not given.
func (m *module) value(body *hclsyntax.Body, name string) cty.Value {
	m.t.Helper()
	attr := body.Attributes[name]
	if attr == nil {
		return cty.NullVal(cty.DynamicPseudoType)
	}
	ctx := &hcl.EvalContext{}
	if len(attr.Expr.Variables()) > 0 {
		ctx = m.scope()
	}
	v, diags := attr.Expr.Value(ctx)
	m.check(diags)
	return v
}

// text is value for a string, "" for null.
func (m *module) text(body *hclsyntax.Body, name string) string {
	m.t.Helper()
	v := m.value(body, name)
	if v.IsNull() {
		return ""
	}
	return v.AsString()
}

func (m *module) expect(body *hclsyntax.Body, name string, want cty.Value) {
	m.t.Helper()
	got, err := convert.Convert(m.value(body, name), want.Type())
	if err != nil || !got.RawEquals(want) {
		m.t.Errorf("%s: %s is %#v, %v; want %#v", body.SrcRange, name, got, err, want)
	}
}

func (m *module) one(body *hclsyntax.Body, kind string) *hclsyntax.Body {
	m.t.Helper()
	all := blocks(body, kind)
	if len(all) != 1 {
		m.t.Fatalf("%s: %d blocks %s, want 1", body.SrcRange, len(all), kind)
	}
	return all[0].Body
}

// table reads a resource as the code would spell it.
func (m *module) table(block *hclsyntax.Block) dynamo.Table {
	m.t.Helper()
	body := block.Body
	table := dynamo.Table{
		Name: m.text(body, "name"), PartitionKey: m.text(body, "hash_key"), SortKey: m.text(body, "range_key"),
	}
	for _, index := range blocks(body, "global_secondary_index") {
		projects := m.text(index.Body, "projection_type")
		if projects != "ALL" && projects != "KEYS_ONLY" {
			m.t.Errorf("%s: projects %s, the code wants ALL or KEYS_ONLY", index.DefRange(), projects)
		}
		i := dynamo.Index{Name: m.text(index.Body, "name"), KeysOnly: projects == "KEYS_ONLY"}
		for _, key := range blocks(index.Body, "key_schema") {
			part := map[string]*string{"HASH": &i.PartitionKey, "RANGE": &i.SortKey}[m.text(key.Body, "key_type")]
			if part == nil || *part != "" {
				m.t.Fatalf("%s: key type %q, or a second one", key.DefRange(), m.text(key.Body, "key_type"))
			}
			*part = m.text(key.Body, "attribute_name")
		}
		table.Indexes = append(table.Indexes, i)
	}
	for _, ttl := range blocks(body, "ttl") {
		m.expect(ttl.Body, "enabled", cty.True)
		table.TTL = m.text(ttl.Body, "attribute_name")
	}
	for _, local := range blocks(body, "local_secondary_index") {
		m.t.Errorf("%s: the code creates no such index", local.DefRange())
	}
	m.attributes(block, table)
	return normal(table)
}

// attributes checks that exactly the keys' attributes are declared, all as
// strings: the provider plans for ever where one more is.
func (m *module) attributes(block *hclsyntax.Block, table dynamo.Table) {
	m.t.Helper()
	want := map[string]string{table.PartitionKey: "S"}
	for _, i := range append(table.Indexes, dynamo.Index{PartitionKey: table.PartitionKey, SortKey: table.SortKey}) {
		want[i.PartitionKey] = "S"
		if i.SortKey != "" {
			want[i.SortKey] = "S"
		}
	}
	got := map[string]string{}
	for _, a := range blocks(block.Body, "attribute") {
		got[m.text(a.Body, "name")] = m.text(a.Body, "type")
	}
	if !maps.Equal(got, want) || len(got) != len(blocks(block.Body, "attribute")) {
		m.t.Errorf("%s: attributes are %v, want %v", block.DefRange(), got, want)
	}
}

// valid evaluates the variable's validations.
func (m *module) valid(name string) bool {
	m.t.Helper()
	for _, block := range m.blocks("variable") {
		if block.Labels[0] != name {
			continue
		}
		for _, v := range blocks(block.Body, "validation") {
			if m.text(v.Body, "error_message") == "" {
				m.t.Errorf("%s: no message", v.DefRange())
			}
			if !m.value(v.Body, "condition").True() {
				return false
			}
		}
	}
	return true
}

// outputKeys counts the entries of an output that is an object.
func (m *module) outputKeys(name string) int {
	m.t.Helper()
	for _, block := range m.blocks("output") {
		if block.Labels[0] == name {
			items, diags := hcl.ExprMap(block.Body.Attributes["value"].Expr)
			m.check(diags)
			return len(items)
		}
	}
	return 0
}

func blocks(body *hclsyntax.Body, kind string) (all []*hclsyntax.Block) {
	for _, block := range body.Blocks {
		if block.Type == kind {
			all = append(all, block)
		}
	}
	return all
}

// normal sorts the indexes, whose order says nothing.
func normal(t dynamo.Table) dynamo.Table {
	t.Indexes = slices.SortedFunc(slices.Values(t.Indexes), func(a, b dynamo.Index) int { return cmp.Compare(a.Name, b.Name) })
	return t
}
