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

	"github.com/zclconf/go-cty/cty"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/schema"
	"github.com/coordsvc/coordsvc/keytype"
)

const terraformDir = "../infra/terraform"

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
	for _, want := range schema.Tables("other-") {
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
		if kind.Table != "" && !slices.ContainsFunc(schema.Tables("other-"), isCreated) {
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
			capacity, most := cty.NullVal(cty.Number), cty.NullVal(cty.Number)
			if mode == "PROVISIONED" {
				capacity, most = cty.NumberIntVal(25), cty.NumberIntVal(1000)
			}
			for _, table := range m.resources("aws_dynamodb_table") {
				m.expect(table, "billing_mode", cty.StringVal(mode))
				m.expect(table, "read_capacity", capacity)
				m.expect(table, "write_capacity", capacity)
				m.expect(table, "deletion_protection_enabled", protected)
				m.expect(table, "tags", m.variable("tags"))
				m.expect(m.one(table, "point_in_time_recovery"), "enabled", cty.True)
				m.expect(m.one(table, "server_side_encryption"), "enabled", cty.True)
				m.expect(m.one(table, "server_side_encryption"), "kms_key_arn", key)
				for _, index := range m.within(table, "global_secondary_index") {
					m.expect(index, "read_capacity", most)
					m.expect(index, "write_capacity", most)
				}
			}
			want := 0
			if mode == "PROVISIONED" {
				want = 2 * len(schema.Tables(""))
			}
			if got := len(m.resources("aws_appautoscaling_target")); got != want || len(m.resources("aws_appautoscaling_policy")) != want {
				t.Errorf("%s: %d capacities follow their use, want %d", mode, got, want)
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
		{"name", str("coordsvc"), true},
		{"name", str("a"), false},
		{"name", str("a--b"), false},
		{"name", str("a-"), false},
		{"name", str("A1"), false},
		{"name", str("1a"), false},
		{"read_capacity_max", cty.NumberIntVal(0), false},
		{"read_capacity_max", cty.NumberIntVal(40000), true},
		{"write_capacity_max", cty.NumberFloatVal(1.5), false},
		{"write_capacity_max", cty.NumberIntVal(1), true},
		{"capacity_target", cty.NumberIntVal(19), false},
		{"capacity_target", cty.NumberIntVal(91), false},
		{"capacity_target", cty.NumberIntVal(90), true},
		{"vpc_id", cty.NullVal(cty.String), true},
		{"vpc_id", str("vpc-0a1b"), true},
		{"vpc_id", str("main"), false},
		{"caller_security_group_ids", cty.ListVal([]cty.Value{str("sg-0a")}), true},
		{"caller_security_group_ids", cty.ListVal([]cty.Value{str("sg-0a"), str("0.0.0.0/0")}), false},
		{"ops_security_group_ids", cty.ListVal([]cty.Value{str("sg-0a")}), true},
		{"ops_security_group_ids", cty.ListVal([]cty.Value{str("x")}), false},
		{"envoy_security_group_ids", cty.ListVal([]cty.Value{str("sg-0a")}), true},
		{"envoy_security_group_ids", cty.ListVal([]cty.Value{str("x")}), false},
		{"valkey_subnet_ids", cty.ListVal([]cty.Value{str("subnet-1"), str("subnet-2")}), true},
		{"valkey_subnet_ids", cty.ListVal([]cty.Value{str("subnet-1")}), false},
		{"valkey_subnet_ids", cty.ListVal([]cty.Value{str("subnet-1"), str("x")}), false},
		{"valkey_auth_token", cty.NullVal(cty.String), true},
		{"valkey_auth_token", str("0123456789abcde"), false},
		{"valkey_auth_token", str("0123456789abcdef"), true},
		{"valkey_auth_token", str("0123456789abcde@"), false},
		{"valkey_version", str("8.1"), true},
		{"valkey_version", str("7.2"), false},
		{"valkey_node_type", str("cache.r7g.large"), true},
		{"valkey_node_type", str("r7g.large"), false},
		{"valkey_shards", cty.NumberIntVal(0), false},
		{"valkey_shards", cty.NumberIntVal(501), false},
		{"valkey_shards", cty.NumberIntVal(500), true},
		{"valkey_replicas", cty.NumberIntVal(0), false},
		{"valkey_replicas", cty.NumberIntVal(6), false},
		{"valkey_replicas", cty.NumberIntVal(5), true},
		{"valkey_maintenance_window", str("mon:00:30-mon:01:30"), true},
		{"valkey_maintenance_window", str("monday"), false},
		{"alarm_topic_arns", cty.ListVal([]cty.Value{str("arn:aws:sns:eu-central-1:123456789012:t")}), true},
		{"alarm_topic_arns", cty.ListVal([]cty.Value{str("t")}), false},
		{"waf_rate_limit", cty.NullVal(cty.Number), true},
		{"waf_rate_limit", cty.NumberIntVal(9), false},
		{"waf_rate_limit", cty.NumberIntVal(10), true},
		{"waf_load_balancer_arn", cty.NullVal(cty.String), true},
		{"waf_load_balancer_arn", str("arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/app/a/0"), true},
		{"waf_load_balancer_arn", str("arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/net/a/0"), false},
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
	for _, variable := range m.blocks("variable") {
		name := variable.Labels[0]
		if !m.valid(name) {
			t.Errorf("%s: its default is not valid", name)
		}
		tried := func(ok bool) bool {
			for _, c := range cases {
				if c.name == name && c.ok == ok {
					return true
				}
			}
			return false
		}
		if len(m.within(variable, "validation")) > 0 && (!tried(true) || !tried(false)) {
			t.Errorf("%s: no value that is valid, or none that is not, is tried", name)
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
}

// table reads a resource as the code would spell it.
func (m *module) table(b block) dynamo.Table {
	m.t.Helper()
	table := dynamo.Table{Name: m.text(b, "name"), PartitionKey: m.text(b, "hash_key"), SortKey: m.text(b, "range_key")}
	for _, index := range m.within(b, "global_secondary_index") {
		projects := m.text(index, "projection_type")
		if projects != "ALL" && projects != "KEYS_ONLY" {
			m.t.Errorf("%s: projects %s, the code wants ALL or KEYS_ONLY", index.DefRange(), projects)
		}
		i := dynamo.Index{Name: m.text(index, "name"), KeysOnly: projects == "KEYS_ONLY"}
		for _, key := range m.within(index, "key_schema") {
			part := map[string]*string{"HASH": &i.PartitionKey, "RANGE": &i.SortKey}[m.text(key, "key_type")]
			if part == nil || *part != "" {
				m.t.Fatalf("%s: key type %q, or a second one", key.DefRange(), m.text(key, "key_type"))
			}
			*part = m.text(key, "attribute_name")
		}
		table.Indexes = append(table.Indexes, i)
	}
	for _, ttl := range m.within(b, "ttl") {
		m.expect(ttl, "enabled", cty.True)
		table.TTL = m.text(ttl, "attribute_name")
	}
	for _, local := range m.within(b, "local_secondary_index") {
		m.t.Errorf("%s: the code creates no such index", local.DefRange())
	}
	m.attributes(b, table)
	return normal(table)
}

// attributes checks that exactly the keys' attributes are declared, all as
// strings: the provider plans for ever where one more is.
func (m *module) attributes(b block, table dynamo.Table) {
	m.t.Helper()
	want := map[string]string{table.PartitionKey: "S"}
	for _, i := range append(table.Indexes, dynamo.Index{PartitionKey: table.PartitionKey, SortKey: table.SortKey}) {
		want[i.PartitionKey] = "S"
		if i.SortKey != "" {
			want[i.SortKey] = "S"
		}
	}
	declared := m.within(b, "attribute")
	got := map[string]string{}
	for _, a := range declared {
		got[m.text(a, "name")] = m.text(a, "type")
	}
	if !maps.Equal(got, want) || len(got) != len(declared) {
		m.t.Errorf("%s: attributes are %v, want %v", b.DefRange(), got, want)
	}
}

// valid evaluates the variable's validations.
func (m *module) valid(name string) bool {
	m.t.Helper()
	for _, variable := range m.blocks("variable") {
		if variable.Labels[0] != name {
			continue
		}
		for _, v := range m.within(variable, "validation") {
			if m.text(v, "error_message") == "" {
				m.t.Errorf("%s: no message", v.DefRange())
			}
			if !m.value(v, "condition").True() {
				return false
			}
		}
	}
	return true
}

// normal sorts the indexes, whose order says nothing.
func normal(t dynamo.Table) dynamo.Table {
	t.Indexes = slices.SortedFunc(slices.Values(t.Indexes), func(a, b dynamo.Index) int { return cmp.Compare(a.Name, b.Name) })
	return t
}
