package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/internal/auth"
)

// A document is the contract, or a part of it.
type document map[string]any

// theContract is what every answer in these tests is held against.
var theContract = func() document {
	var d map[string]any
	if err := yaml.Unmarshal(api.Contract, &d); err != nil {
		panic(err)
	}
	return d
}()

// at walks down by names. A $ref is followed.
func (d document) at(names ...string) document {
	for _, name := range names {
		next, _ := d[name].(map[string]any)
		d = document(next).resolve()
	}
	return d
}

func (d document) resolve() document {
	ref, ok := d["$ref"].(string)
	if !ok {
		return d
	}
	return theContract.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
}

func (d document) strings(name string) []string {
	list, _ := d[name].([]any)
	var all []string
	for _, s := range list {
		all = append(all, fmt.Sprint(s))
	}
	return all
}

// template finds the contract's path of a request, empty where there is none.
func (d document) template(method, path string) (best string) {
	path, _, _ = strings.Cut(path, "?")
	segments := strings.Split(path, "/")
	for template := range d.at("paths") {
		fits := func(want, got string) bool { return want == got || strings.HasPrefix(want, "{") }
		if !slices.EqualFunc(strings.Split(template, "/"), segments, fits) || d.at("paths", template, strings.ToLower(method)) == nil {
			continue
		}
		if best == "" || strings.Count(template, "{") < strings.Count(best, "{") {
			best = template
		}
	}
	return best
}

// operation finds what the contract says of a request.
func (d document) operation(method, path string) document {
	return d.at("paths", d.template(method, path), strings.ToLower(method))
}

// breaches are what the contract does not allow about the answer.
func (d document) breaches(method, path string, a answer) (found []string) {
	if a.header.Get("X-Request-Id") == "" {
		found = append(found, "no X-Request-Id")
	}
	responses := d.operation(method, path).at("responses")
	response := responses.at(fmt.Sprint(a.status))
	switch {
	case responses == nil && slices.Contains([]int{401, 404, 405, 503}, a.status):
		response = theContract.at("components", "responses", "NotFound")
	case method == "OPTIONS" && a.status == 204:
		return found
	case response == nil:
		return append(found, "the status is not listed")
	}
	for name := range response.at("headers") {
		sometimes := []string{"Retry-After", "RateLimit", "RateLimit-Policy", "RateLimit-Warning", "X-RateLimit-Degraded", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
		if !slices.Contains(sometimes, name) && a.header.Get(name) == "" {
			found = append(found, "no "+name)
		}
	}
	if late := []string{"lease_held", "lock_held", "idempotency_in_flight", "rate_limited", "store_unavailable"}; slices.Contains(late, a.field("code")) && a.header.Get("Retry-After") == "" {
		found = append(found, "no Retry-After")
	}
	return append(found, response.contentBreaches(method, a)...)
}

func (d document) contentBreaches(method string, a answer) []string {
	mimeType := a.header.Get("Content-Type")
	content := d.at("content")
	switch {
	case content == nil && a.body == "" && mimeType == "", method == "HEAD":
		return nil
	case content.at(mimeType) == nil:
		return []string{fmt.Sprintf("the content type %q is not listed", mimeType)}
	case !strings.HasSuffix(mimeType, "json"):
		return nil
	}
	var value any
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return []string{err.Error()}
	}
	return content.at(mimeType, "schema").valueBreaches("", value)
}

var instantForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)

// valueBreaches says where the value is not as the schema wants it. It knows what this contract uses.
func (d document) valueBreaches(where string, value any) (found []string) {
	if enum := d.strings("enum"); enum != nil && !slices.Contains(enum, fmt.Sprint(value)) {
		found = append(found, fmt.Sprintf("%s is %v, not of %v", where, value, enum))
	}
	switch v := value.(type) {
	case map[string]any:
		if d["type"] == nil && d["allOf"] == nil || d["additionalProperties"] != nil && d["properties"] == nil {
			return found // any JSON, or any names
		}
		properties, required := d.fields()
		for _, name := range required {
			if _, there := v[name]; !there {
				found = append(found, where+"."+name+" is missing")
			}
		}
		for name, member := range v {
			if properties[name] == nil {
				found = append(found, where+"."+name+" is not listed")
				continue
			}
			found = append(found, properties[name].valueBreaches(where+"."+name, member)...)
		}
	case []any:
		if d["type"] != nil && d["type"] != "array" {
			found = append(found, where+" is an array")
		}
		for _, item := range v {
			found = append(found, d.at("items").valueBreaches(where+"[]", item)...)
		}
	case string:
		if d["format"] == "date-time" && !instantForm.MatchString(v) {
			found = append(found, where+" has another form than an instant")
		}
		if d["type"] != nil && d["type"] != "string" {
			found = append(found, where+" is a string")
		}
	case json.Number:
		if _, err := v.Int64(); err != nil || d["type"] != nil && d["type"] != "integer" {
			found = append(found, where+" is a number")
		}
	case bool:
		if d["type"] != nil && d["type"] != "boolean" {
			found = append(found, where+" is a boolean")
		}
	case nil:
		if d["type"] != nil || d["allOf"] != nil {
			found = append(found, where+" is null")
		}
	}
	return found
}

// fields are the properties and the required names of an object, allOf included.
func (d document) fields() (map[string]document, []string) {
	properties, required := map[string]document{}, d.strings("required")
	for name := range d.at("properties") {
		properties[name] = d.at("properties", name)
	}
	parts, _ := d["allOf"].([]any)
	for _, part := range parts {
		p, r := document(part.(map[string]any)).resolve().fields()
		maps.Copy(properties, p)
		required = append(required, r...)
	}
	return properties, required
}

func TestContractListsExactlyTheRoutes(t *testing.T) {
	var listed, served []string
	for path, item := range theContract.at("paths") {
		for method := range item.(map[string]any) {
			if method != "parameters" {
				listed = append(listed, strings.ToUpper(method)+" "+path)
			}
		}
	}
	for _, r := range (&server{}).routes() {
		served = append(served, r.method+" "+regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.path, "{$1}"))
	}
	slices.Sort(listed)
	slices.Sort(served)
	if !slices.Equal(listed, served) {
		t.Errorf("the contract lists\n%s\nbut served are\n%s", strings.Join(listed, "\n"), strings.Join(served, "\n"))
	}
}

func TestContractNamesScopesParametersAndFailures(t *testing.T) {
	for _, r := range (&server{}).routes() {
		path := regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.path, "{$1}")
		op := theContract.at("paths", path, strings.ToLower(r.method))
		if r.scope != anyKey && !strings.Contains(fmt.Sprint(op["description"]), "cope `"+string(r.scope)+"`") {
			t.Errorf("%s %s: the description does not name the scope %s", r.method, path, r.scope)
		}
		if effect := strings.Contains(fmt.Sprint(op.at("responses", "503")["description"]), "outcome_unknown"); effect != r.effect {
			t.Errorf("%s %s: outcome_unknown listed is %v, possible is %v", r.method, path, effect, r.effect)
		}
		var query []string
		parameters, _ := op["parameters"].([]any)
		for _, p := range parameters {
			if p := document(p.(map[string]any)).resolve(); p["in"] == "query" {
				query = append(query, fmt.Sprint(p["name"]))
			}
		}
		if !slices.Equal(query, r.query) {
			t.Errorf("%s %s: the query parameters are %v, listed are %v", r.method, path, r.query, query)
		}
	}
}

// An Idempotency-Key is for a POST that has an effect and no request id in its body, and
// whose earlier answer is no danger: that a token passed once, or that a lease was held,
// says nothing of now.
func TestContractNamesTheRoutesWithAKey(t *testing.T) {
	for _, r := range (&server{}).routes() {
		path := regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.path, "{$1}")
		request := request{method: r.method, path: path}
		body, _ := requestBody(request).at("content", "application/json", "schema").fields()
		asks := slices.Contains([]string{"/v1/sessions/verify", "/v1/ratelimit/check", "/v1/ratelimit/peek"}, path)
		now := slices.Contains([]string{"/v1/ratelimit/token-leases", "/v1/fences/{resource}/admit", "/v1/leases/{resource}/renew", "/v1/leases/renew-set", "/v1/locks/{name}/acquire", "/v1/locks/{name}/renew", "/v1/idempotency/{key}/extend"}, path)
		want := r.method == "POST" && body["request_id"] == nil && !asks && !now
		if want != r.takesKey() || want != takesKey(request) {
			t.Errorf("%s %s: should take an Idempotency-Key: %v, does: %v, is listed to: %v", r.method, path, want, r.takesKey(), takesKey(request))
		}
	}
}

func TestContractListsEveryCodeAndScope(t *testing.T) {
	var codes, scopes []string
	for code := range kinds {
		codes = append(codes, string(code))
	}
	for _, scope := range auth.AllScopes() {
		scopes = append(scopes, string(scope))
	}
	slices.Sort(codes)
	if listed := theContract.at("components", "schemas", "ProblemCode").strings("enum"); !slices.Equal(listed, codes) {
		t.Errorf("codes: listed %v, used %v", listed, codes)
	}
	if listed := theContract.at("components", "schemas", "Scope").strings("enum"); !slices.Equal(listed, scopes) {
		t.Errorf("scopes: listed %v, known %v", listed, scopes)
	}
}

func TestContractIsServedWithoutAKey(t *testing.T) {
	s := startService(t)
	a := s.do(request{method: "GET", path: "/openapi.yaml", header: map[string]string{"Authorization": ""}})
	if a.status != 200 || a.header.Get("Content-Type") != "application/yaml" || a.body != string(api.Contract) {
		t.Errorf("answered %d %s with %d bytes", a.status, a.header.Get("Content-Type"), len(a.body))
	}
	s.do(request{method: "POST", path: "/openapi.yaml", header: map[string]string{"Authorization": ""}}).refused(t, 401, "unauthenticated")
	s.post("/openapi.yaml", "").refused(t, 405, "method_not_allowed")
}
