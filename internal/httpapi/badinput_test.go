package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
)

// A bad request is one that must have no effect.
type bad struct {
	why string
	request
	status int
	code   string
}

func malformedBy(why string, r request) bad {
	return bad{why, r, 400, "invalid_request"}
}

func invalidBy(why string, r request) bad {
	return bad{why, r, 422, "invalid_value"}
}

// Every route refuses every bad request that the contract lets us think of,
// with the status and code that it names, and nothing is stored.
func TestBadInputOnEveryRoute(t *testing.T) {
	s := startService(t)
	all := samples(s)
	keys := unusableKeys(s)
	total := 0
	for _, r := range all {
		t.Run(fmt.Sprint(theContract.operation(r.method, r.path)["operationId"]), func(t *testing.T) {
			s := *s
			s.t = t
			good := r.request()
			cases := slices.Concat(badBodies(good), badFields(good), badPaths(good), badHeads(good))
			if r.path != contract {
				cases = append(cases, badKeys(&s, good, keys)...)
			}
			before := s.items()
			for _, c := range cases {
				a := s.do(c.request)
				if a.status != c.status || a.field("code") != c.code {
					t.Errorf("%s: answered %d %s, want %d %s\n body %.200s", c.why, a.status, a.body, c.status, c.code, c.body)
				}
				if a.status == 401 && a.header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s: answered without WWW-Authenticate: Bearer", c.why)
				}
				if after := s.items(); !maps.Equal(before, after) {
					t.Fatalf("%s: the stores changed", c.why)
				}
			}
			total += len(cases)
		})
	}
	t.Logf("%d bad requests", total)
	if total < 1000 {
		t.Errorf("only %d bad requests were sent", total)
	}
}

// badBodies are wrong on any route: GET and DELETE take no field at all.
func badBodies(good request) []bad {
	with := func(body string) request {
		r := good
		r.body = body
		return r
	}
	if takesAny(good) {
		return badAny(with)
	}
	as := func(mimeType string) request {
		r := with("{}")
		r.header = map[string]string{"Content-Type": mimeType}
		return r
	}
	long := `{"x":"` + strings.Repeat("x", 65<<10) + `"}`
	chunked := with(long)
	chunked.chunked = true
	encoded := with("{}")
	encoded.header = map[string]string{"Content-Encoding": "gzip"}
	cases := []bad{
		malformedBy("an array", with(`[]`)),
		malformedBy("a string", with(`"x"`)),
		malformedBy("null", with(`null`)),
		malformedBy("NaN", with(`NaN`)),
		malformedBy("blank", with(` `)),
		malformedBy("an unknown field", with(`{"unknown_field":1}`)),
		malformedBy("1e400", with(`{"unknown_field":1e400}`)),
		malformedBy("20,000 arrays", with(strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000))),
		malformedBy("20,000 open arrays", with(strings.Repeat("[", 20_000))),
		malformedBy("a second object", with(`{}{}`)),
		malformedBy("invalid UTF-8", with("{\"\xff\":1}")),
		{"65 KB", with(long), 413, "body_too_large"},
		{"65 KB of unknown length", chunked, 413, "body_too_large"},
		{"65 KB that is no JSON", with(strings.Repeat("x", 65<<10)), 413, "body_too_large"},
		{"plain text", as("text/plain"), 415, "unsupported_media_type"},
		{"no type", as(""), 415, "unsupported_media_type"},
		{"a form", as("application/x-www-form-urlencoded"), 415, "unsupported_media_type"},
		{"JSON of a kind", as("application/vnd.api+json"), 415, "unsupported_media_type"},
		{"another charset", as("application/json; charset=latin1"), 415, "unsupported_media_type"},
		{"a garbled type", as("application/json;;;="), 415, "unsupported_media_type"},
		{"a compressed body", encoded, 415, "unsupported_media_type"},
	}
	if good.body != "" {
		cases = append(cases, malformedBy("trailing bytes", with(good.body+"x")), malformedBy("a trailing NUL", with(good.body+"\x00")), malformedBy("cut off", with(good.body[:len(good.body)-1])))
	}
	if requestBody(good)["required"] == true {
		cases = append(cases, malformedBy("no body", with("")))
	}
	return cases
}

// takesAny reports whether the body is any JSON, so that no object is wrong.
func takesAny(r request) bool {
	schema := requestBody(r).at("content", "application/json", "schema")
	return schema != nil && schema["type"] == nil
}

// badAny are wrong where any JSON is right.
func badAny(with func(string) request) []bad {
	typed := with("{}")
	typed.header = map[string]string{"Content-Type": "text/plain"}
	unconditional := with("{}")
	unconditional.header = nil
	versioned := func(v string) request {
		r := with("{}")
		r.header = map[string]string{"If-Match": v}
		return r
	}
	cases := []bad{
		{"65 KB", with(`"` + strings.Repeat("x", 65<<10) + `"`), 413, "body_too_large"},
		{"plain text", typed, 415, "unsupported_media_type"},
		invalidBy("4097 bytes", with(`"`+strings.Repeat("x", 4095)+`"`)),
		{"no If-Match", unconditional, 428, "precondition_required"},
		{"another version", versioned(`"7"`), 412, "version_mismatch"},
		malformedBy("no body", with("")),
	}
	for _, v := range []string{"0", "*", `W/"0"`, `"0", "1"`, `"00"`, `"-0"`, `"x"`, `""`, `"9223372036854775808"`} {
		cases = append(cases, malformedBy("If-Match is "+v, versioned(v)))
	}
	for _, body := range []string{`x`, `{`, `{}{}`, `{}x`, `1,"data":2`, `{"a":1,"a":1}`, `1e400`, `18446744073709551616`, "\"\xff\"", `"\ud800"`, strings.Repeat("[", 129) + strings.Repeat("]", 129)} {
		cases = append(cases, malformedBy(fmt.Sprintf("%.40q", body), with(body)))
	}
	return cases
}

func requestBody(r request) document {
	return theContract.operation(r.method, r.path).at("requestBody")
}

// badFields spoils each field of a good body in turn.
func badFields(good request) (cases []bad) {
	properties, required := requestBody(good).at("content", "application/json", "schema").fields()
	var body map[string]json.RawMessage
	if json.Unmarshal([]byte(good.body), &body) != nil {
		return nil
	}
	set := func(name, value string) request {
		r := good
		r.body = spell(body, name, value)
		return r
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		schema := properties[name].merged()
		twice := good
		twice.body = strings.TrimSuffix(good.body, "}") + `,"` + name + `":` + string(body[name]) + `}`
		cases = append(cases, malformedBy(name+" twice", twice), malformedBy(name+" in capitals", set(strings.ToUpper(name), "1")))
		if slices.Contains(required, name) {
			cases = append(cases, invalidBy(name+" missing", set(name, "")))
		}
		for _, value := range wrongTypes(fmt.Sprint(schema["type"])) {
			cases = append(cases, malformedBy(fmt.Sprintf("%s is %.40s", name, value), set(name, value)))
		}
		for _, value := range wrongValues(schema) {
			cases = append(cases, invalidBy(fmt.Sprintf("%s is %.40s", name, value), set(name, value)))
		}
	}
	return cases
}

// merged is the schema with what its allOf says.
func (d document) merged() document {
	all := maps.Clone(d)
	parts, _ := d["allOf"].([]any)
	for _, part := range parts {
		maps.Copy(all, document(part.(map[string]any)).resolve())
	}
	return all
}

// spell writes the object with one field set to a value, or without it where the value is empty.
func spell(body map[string]json.RawMessage, name, value string) string {
	var fields []string
	for _, other := range slices.Sorted(maps.Keys(body)) {
		if other != name {
			fields = append(fields, `"`+other+`":`+string(body[other]))
		}
	}
	if value != "" {
		fields = append(fields, `"`+name+`":`+value)
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func wrongTypes(kind string) []string {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	always := []string{`NaN`, `1e400`, deep, `"\ud800"`, "\"\xff\"", `{"a":1,"a":1}`}
	switch kind {
	case "integer":
		return append(always, `null`, `"1"`, `1.0`, `1e2`, `-0.5`, `9223372036854775808`, `-9223372036854775809`, `true`, `[1]`, `{}`)
	case "string":
		return append(always, `null`, `1`, `true`, `["x"]`, `{}`)
	case "boolean":
		return append(always, `null`, `"true"`, `1`, `[]`)
	case "array":
		return append(always, `null`, `"x"`, `{}`, `[1]`, `[null]`, `[["x"]]`)
	case "object":
		return append(always, `null`, `"x"`, `[]`, `{"k":1}`, `{"k":null}`, `{"k":{}}`)
	default: // any JSON
		return append(always, `18446744073709551616`, strings.Repeat("[", 129)+strings.Repeat("]", 129))
	}
}

func wrongValues(schema document) (values []string) {
	switch schema["type"] {
	case "integer":
		low, high := fmt.Sprint(schema["minimum"]), fmt.Sprint(schema["maximum"])
		if n, err := strconv.ParseInt(low, 10, 64); err == nil {
			values = append(values, strconv.FormatInt(n-1, 10), "-1", "-9223372036854775808")
			if n > 0 {
				values = append(values, "0")
			}
		}
		if n, err := strconv.ParseInt(high, 10, 64); err == nil {
			values = append(values, strconv.FormatInt(n+1, 10), "9223372036854775807")
		}
		return values
	case "array":
		if items, _ := schema["items"].(map[string]any); document(items).resolve()["type"] == "object" {
			return []string{`[]`, `[{}]`}
		}
		return []string{`["` + strings.Repeat("x", 257) + `"]`, `["a\u0000"]`, `["leases:read","leases:read"]`, `[""]`, `["."]`}
	case "object":
		return []string{`{}`, `{"tenant":"shop","user":"` + strings.Repeat("x", 257) + `"}`, `{"tenant":"shop","user":""}`, `{"tenant":"shop","user":"a\n"}`, `{"tenant":"shop","user":"ann","":"x"}`}
	case "string":
		if schema["format"] == "date-time" {
			values = []string{`""`, `"tomorrow"`, `"2026-02-30T00:00:00Z"`}
			if strings.HasPrefix(fmt.Sprint(schema["description"]), "In the future") {
				values = append(values, `"1999-01-01T00:00:00.000Z"`)
			}
			return values
		}
		values = []string{`""`, `"a\u0001"`, `"a\u007f"`, `"a\u0085"`}
		if n, err := strconv.Atoi(fmt.Sprint(schema["maxLength"])); err == nil {
			values = append(values, `"`+strings.Repeat("x", n+1)+`"`)
		}
		if strings.Contains(fmt.Sprint(schema["description"]), "neither `.`") {
			values = append(values, `"."`, `".."`)
		}
		return values
	}
	return nil
}

// badPaths spoils each id in the path in turn.
func badPaths(good request) (cases []bad) {
	segments := strings.Split(good.path, "/")
	for i, segment := range segments {
		template := theContract.template(good.method, good.path)
		if !strings.HasPrefix(strings.Split(template, "/")[i], "{") {
			continue
		}
		for _, id := range []string{strings.Repeat("x", 257), strings.Repeat("%C3%A9", 129), "a%01", "%00", "a%7F", "a%C2%85", "%ff", "%ED%A0%80", "%2e", "%2E%2E", ".", ".."} {
			r := good
			segments[i] = id
			r.path = strings.Join(segments, "/")
			cases = append(cases, invalidBy("the path has "+id, r))
		}
		segments[i] = segment
	}
	return cases
}

// badHeads are wrong before the body is looked at.
func badHeads(good request) []bad {
	query := good
	if strings.Contains(query.path, "?") {
		query.path += "&unknown=1"
	} else {
		query.path += "?unknown=1"
	}
	cases := []bad{malformedBy("an unknown query parameter", query)}
	named := func(name string) request {
		r := good
		r.header = map[string]string{"Idempotency-Key": name}
		return r
	}
	if !takesKey(good) {
		return append(cases, malformedBy("an Idempotency-Key", named("k")))
	}
	for _, name := range []string{".", "..", "\xff", "a\tb", strings.Repeat("x", 257)} {
		cases = append(cases, invalidBy(fmt.Sprintf("the Idempotency-Key %.9q", name), named(name)))
	}
	return cases
}

// takesKey reports whether the contract has the route take an Idempotency-Key.
func takesKey(r request) bool {
	parameters, _ := theContract.operation(r.method, r.path)["parameters"].([]any)
	return slices.ContainsFunc(parameters, func(p any) bool {
		return document(p.(map[string]any)).resolve()["in"] == "header"
	})
}

// unusableKeys are texts that authenticate nobody.
func unusableKeys(s *service) map[string]string {
	secret, key, err := s.keys.Create(s.t.Context(), "default", nil, auth.NewKey{Name: "revoked", Scopes: auth.AllScopes()})
	if err != nil {
		s.t.Fatal(err)
	}
	late, _, err := s.keys.Create(s.t.Context(), "default", nil, auth.NewKey{Name: "expired", Scopes: auth.AllScopes(), ExpiresAt: s.clock.now().Add(time.Millisecond)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.clock.advance(time.Millisecond)
	if err := s.keys.Revoke(s.t.Context(), "default", key.ID); err != nil {
		s.t.Fatal(err)
	}
	return map[string]string{
		"no key":              "",
		"an empty key":        "Bearer ",
		"no scheme":           s.key,
		"another scheme":      "Basic " + s.key,
		"a malformed key":     "Bearer csk_x",
		"a session's token":   "Bearer cst_0123456789012345678901234567890123456789",
		"an unknown key":      "Bearer " + auth.NewSecret().Reveal(),
		"a key and more":      "Bearer " + s.key + " x",
		"a key in capitals":   "Bearer " + strings.ToUpper(s.key),
		"a revoked key":       "Bearer " + secret.Reveal(),
		"an expired key":      "Bearer " + late.Reveal(),
		"a key of 10,000":     "Bearer csk_" + strings.Repeat("x", 10_000),
		"a key with \xff":     "Bearer csk_\xff",
		"a comma in between":  "Bearer " + s.key + ", Bearer " + s.key,
		"a quoted key":        `Bearer "` + s.key + `"`,
		"the key's id":        "Bearer " + key.ID,
		"a different version": "Bearer csk2_" + strings.TrimPrefix(s.key, "csk_"),
	}
}

func badKeys(s *service, good request, keys map[string]string) (cases []bad) {
	for why, header := range keys {
		r := good
		r.header = map[string]string{"Authorization": header}
		cases = append(cases, bad{why, r, 401, "unauthenticated"})
		r.path, r.body = "/v1/no/such/route", "{"
		cases = append(cases, bad{why + " and no such route", r, 401, "unauthenticated"})
	}
	for _, route := range (&server{}).routes() {
		template := theContract.template(good.method, good.path)
		if route.scope == anyKey || route.method != good.method || strings.NewReplacer("{", ":", "}", "").Replace(template) != route.path {
			continue
		}
		others := slices.DeleteFunc(auth.AllScopes(), func(scope auth.Scope) bool { return scope == route.scope })
		r := good
		r.header = map[string]string{"Authorization": "Bearer " + s.newKey("default", others...)}
		cases = append(cases, bad{"a key with every other scope", r, 403, "forbidden_scope"})
		r.body = "{"
		cases = append(cases, bad{"a key with every other scope and a bad body", r, 403, "forbidden_scope"})
	}
	return cases
}
