package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/coordsvc/coordsvc/internal/schema"
)

// withValkey is the module as a caller with a VPC uses it.
func withValkey(t *testing.T, shards, replicas int64) *module {
	t.Helper()
	m := readModule(t)
	strs := func(values ...string) cty.Value {
		var all []cty.Value
		for _, v := range values {
			all = append(all, cty.StringVal(v))
		}
		return cty.ListVal(all)
	}
	m.set("vpc_id", cty.StringVal("vpc-1"))
	m.set("valkey_subnet_ids", strs("subnet-1", "subnet-2"))
	m.set("valkey_auth_token", cty.StringVal("0123456789abcdef"))
	m.set("valkey_shards", cty.NumberIntVal(shards))
	m.set("valkey_replicas", cty.NumberIntVal(replicas))
	m.set("caller_security_group_ids", strs("sg-1"))
	m.set("alarm_topic_arns", strs("arn:aws:sns:eu-central-1:123456789012:t"))
	named := cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal("sg-2"), "name": cty.StringVal("n")})
	for _, kind := range []string{"aws_security_group", "aws_elasticache_parameter_group", "aws_elasticache_subnet_group"} {
		one := cty.TupleVal([]cty.Value{named})
		m.made[kind] = cty.ObjectVal(map[string]cty.Value{"this": one, "valkey": one, "service": one})
	}
	made := map[string]cty.Value{}
	for _, table := range schema.Tables("") {
		made[table.Name] = cty.ObjectVal(map[string]cty.Value{"name": cty.StringVal(table.Name)})
	}
	m.made["aws_dynamodb_table"] = cty.ObjectVal(map[string]cty.Value{"this": cty.ObjectVal(made)})
	return m
}

// Valkey is there only where a VPC and subnets are named, and never without TLS, a
// password, a replica that takes over, and an eviction that refuses no write.
func TestTerraformValkey(t *testing.T) {
	if all := readModule(t).resources("aws_elasticache_replication_group"); len(all) != 0 {
		t.Errorf("without a VPC there are %d", len(all))
	}
	for _, shards := range []int64{1, 3} {
		m := withValkey(t, shards, 2)
		group := m.resources("aws_elasticache_replication_group")[0]
		for name, want := range map[string]cty.Value{
			"engine": cty.StringVal("valkey"), "transit_encryption_enabled": cty.True, "at_rest_encryption_enabled": cty.True,
			"automatic_failover_enabled": cty.True, "multi_az_enabled": cty.True, "auth_token": cty.StringVal("0123456789abcdef"),
			"num_node_groups": cty.NumberIntVal(shards), "replicas_per_node_group": cty.NumberIntVal(2),
		} {
			m.expect(group, name, want)
		}
		demanded := m.one(m.one(group, "lifecycle"), "precondition")
		m.expect(demanded, "condition", cty.True)
		m.set("valkey_auth_token", cty.NullVal(cty.String))
		demanded.ctx = m.scope()
		m.expect(demanded, "condition", cty.False)

		parameters := map[string]string{}
		for _, p := range m.within(m.resources("aws_elasticache_parameter_group")[0], "parameter") {
			parameters[m.text(p, "name")] = m.text(p, "value")
		}
		mode := map[int64]string{1: "no", 3: "yes"}[shards]
		if parameters["maxmemory-policy"] != "volatile-lru" || parameters["cluster-enabled"] != mode || len(parameters) != 2 {
			t.Errorf("%d shards: parameters %v", shards, parameters)
		}
	}
}

// Nothing takes connections from an address: callers are named by their security group.
func TestTerraformLetsNobodyInByAddress(t *testing.T) {
	m := withValkey(t, 1, 1)
	m.set("envoy_security_group_ids", cty.ListVal([]cty.Value{cty.StringVal("sg-3")}))
	rules := m.resources("aws_vpc_security_group_ingress_rule")
	if len(rules) != 3 { // callers, proxies, and the nodes at Valkey
		t.Errorf("%d rules", len(rules))
	}
	for _, rule := range rules {
		if m.text(rule, "referenced_security_group_id") == "sg-3" {
			m.expect(rule, "from_port", cty.NumberIntVal(9091))
		}
		if rule.Body.Attributes["cidr_ipv4"] != nil || rule.Body.Attributes["cidr_ipv6"] != nil || m.text(rule, "referenced_security_group_id") == "" {
			t.Errorf("%s lets an address in", rule.DefRange())
		}
	}
}

// Each table and each node of Valkey has its alarms, which tell somebody and name a page that exists.
func TestTerraformAlarms(t *testing.T) {
	m := withValkey(t, 2, 1)
	alarms := m.resources("aws_cloudwatch_metric_alarm")
	if want := 2*len(schema.Tables("")) + 4*4; len(alarms) != want {
		t.Errorf("%d alarms, want %d", len(alarms), want)
	}
	nodes := map[string]bool{}
	for _, alarm := range alarms {
		page := regexp.MustCompile(`docs/runbooks/[a-z-]+\.md$`).FindString(m.text(alarm, "alarm_description"))
		if _, err := os.Stat(filepath.Join("..", page)); err != nil || page == "" {
			t.Errorf("%s: %v", m.text(alarm, "alarm_name"), err)
		}
		m.expect(alarm, "alarm_actions", m.variable("alarm_topic_arns"))
		if node := m.value(alarm, "dimensions").AsValueMap()["CacheClusterId"]; !node.IsNull() {
			nodes[node.AsString()] = true
		}
	}
	for _, name := range []string{"coordsvc-0001-001", "coordsvc-0001-002", "coordsvc-0002-001", "coordsvc-0002-002"} {
		if !nodes[name] {
			t.Errorf("no alarm of %s among %v", name, nodes)
		}
	}
	m.set("alarms", cty.False)
	if left := m.resources("aws_cloudwatch_metric_alarm"); len(left) != 0 {
		t.Errorf("%d alarms though none are wanted", len(left))
	}
}

// The WAF is there only with a limit, and before a load balancer only where one is named.
func TestTerraformWAF(t *testing.T) {
	m := readModule(t)
	if all := m.resources("aws_wafv2_web_acl"); len(all) != 0 {
		t.Errorf("without a limit there are %d", len(all))
	}
	m.set("waf_rate_limit", cty.NumberIntVal(2000))
	rate := m.one(m.one(m.one(m.resources("aws_wafv2_web_acl")[0], "rule"), "statement"), "rate_based_statement")
	m.expect(rate, "limit", cty.NumberIntVal(2000))
	if all := m.resources("aws_wafv2_web_acl_association"); len(all) != 0 {
		t.Errorf("without a load balancer there are %d associations", len(all))
	}
}

// Every name that the module and its examples use is declared, and the examples give
// the module what it declares.
func TestTerraformNamesAreDeclared(t *testing.T) {
	m := readModule(t)
	m.references(nil)
	examples, err := filepath.Glob(filepath.Join(terraformDir, "examples", "*"))
	if err != nil || len(examples) != 2 {
		t.Fatalf("examples: %v, %v", examples, err)
	}
	for _, dir := range examples {
		example := parseModule(t, dir)
		children := map[string]*module{}
		for _, call := range example.blocks("module") {
			children[call.Labels[0]] = m
			if source := example.text(call, "source"); filepath.Join(dir, source) != filepath.Clean(terraformDir) {
				t.Errorf("%s: source %q", call.DefRange(), source)
			}
			for name := range call.Body.Attributes {
				if _, declared := m.variables[name]; !declared && name != "source" {
					t.Errorf("%s: the module has no variable %s", call.DefRange(), name)
				}
			}
		}
		if len(children) != 1 {
			t.Errorf("%s uses the module %d times", dir, len(children))
		}
		example.references(children)
		for _, b := range append(example.blocks("variable"), example.blocks("output")...) {
			if b.Body.Attributes["description"] == nil {
				t.Errorf("%s: no description", b.DefRange())
			}
		}
	}
}

// The complete example starts the service with settings that there are.
func TestTerraformExampleSettings(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(terraformDir, "examples", "complete", "ecs.tf"))
	if err != nil {
		t.Fatal(err)
	}
	help, _, _ := output(t, nil, "serve", "--help")
	found := regexp.MustCompile(`name = "(COORD_[A-Z_]+)"`).FindAllStringSubmatch(string(raw), -1)
	if len(found) < 6 {
		t.Errorf("%d settings", len(found))
	}
	for _, setting := range found {
		if !strings.Contains(help, setting[1]) {
			t.Errorf("there is no setting %s", setting[1])
		}
	}
}
