package policy

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// A reader walks one file and keeps what is wrong with it. Where a value is
// wrong it goes on with one that is right, so that it finds every mistake once.
type reader struct {
	file  string
	wrong []Finding
}

// A value is a part of the file, and where it stands.
type value struct {
	node ast.Node
	line int
	path string
}

// An object is a mapping whose fields are known and named once.
type object struct {
	value
	fields map[string]value
}

func (o object) has(name string) bool { return o.fields[name].node != nil }

// at is the field, or the place where it is missing.
func (o object) at(name string) value {
	if o.has(name) {
		return o.fields[name]
	}
	return value{line: o.line, path: join(o.path, name)}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (r *reader) finding(v value, format string, args ...any) Finding {
	return Finding{File: r.file, Line: v.line, Field: v.path, Reason: fmt.Sprintf(format, args...)}
}

func (r *reader) wrongAt(v value, format string, args ...any) {
	r.wrong = append(r.wrong, r.finding(v, format, args...))
}

// document parses the one YAML document of a file; ok is false where there is none.
func (r *reader) document(text []byte) (v value, ok bool) {
	top := value{line: 1}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // which some editors put there
	if !utf8.Valid(text) {
		r.wrongAt(top, "is not valid UTF-8")
		return value{}, false
	}
	if line := nested(text); line > 0 {
		top.line = line
		r.wrongAt(top, "is nested more than %d deep", maxNesting)
		return value{}, false
	}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		if e, ok := errors.AsType[yaml.Error](err); ok && e.GetToken() != nil && e.GetToken().Position != nil {
			top.line = max(1, e.GetToken().Position.Line)
			err = errors.New(e.GetMessage())
		}
		r.wrongAt(top, "is not YAML: %v", err)
		return value{}, false
	}
	bodies := slices.DeleteFunc(file.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(bodies) != 1 {
		r.wrongAt(top, "must hold one YAML document, not %d", len(bodies))
		return value{}, false
	}
	before := len(r.wrong)
	ast.Walk(shared{r}, bodies[0].Body)
	return part(bodies[0].Body, top, ""), len(r.wrong) == before
}

// shared finds what stands elsewhere than where it holds, and what is not as it looks.
type shared struct{ *reader }

// Visit implements ast.Visitor.
func (s shared) Visit(node ast.Node) ast.Visitor {
	var what string
	switch node.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		what = "anchors, aliases and merge keys"
	case *ast.TagNode:
		what = "tags"
	default:
		return s
	}
	s.wrongAt(part(node, value{line: 1}, ""), "has %s, which are refused: write every value where it holds", what)
	return nil
}

// maxNesting is far above what a policy needs. The parser's time grows with the
// square of the depth.
const maxNesting = 50

// nested finds the line in which brackets, or the marks at a line's beginning, go too
// deep, 0 for none. Brackets within quotes count, which does no harm.
func nested(text []byte) (line int) {
	depth := 0
	for content := range bytes.Lines(text) {
		line++
		marks := content[:len(content)-len(bytes.TrimLeft(content, "-?:&!*| \t"))]
		for _, c := range content {
			switch c {
			case '[', '{':
				depth++
			case ']', '}':
				depth--
			}
			if depth > maxNesting {
				return line
			}
		}
		if len(marks)-bytes.Count(marks, []byte(" "))-bytes.Count(marks, []byte("\t")) > maxNesting {
			return line
		}
	}
	return 0
}

// part is a node below another value.
func part(node ast.Node, of value, path string) value {
	line := of.line
	if t := node.GetToken(); t != nil && t.Position != nil && t.Position.Line > 0 {
		line = t.Position.Line
	}
	return value{node, line, path}
}

// object reads a mapping. A field that is not known is a mistake.
func (r *reader) object(v value, known ...string) object {
	o := object{value: v, fields: map[string]value{}}
	mapping, ok := v.node.(*ast.MappingNode)
	if !ok {
		r.wrongAt(v, "must be a mapping, with fields such as %s", strings.Join(known[:min(3, len(known))], ", "))
		return o
	}
	for name, field := range r.pairs(v, mapping) {
		if !slices.Contains(known, name) {
			r.wrongAt(field, "is no field here: there are %s", strings.Join(known, ", "))
			continue
		}
		o.fields[name] = field
	}
	return o
}

// pairs are the mapping's fields by name, each once. The line of each is its name's.
func (r *reader) pairs(v value, mapping *ast.MappingNode) map[string]value {
	all := map[string]value{}
	for _, pair := range mapping.Values {
		key, ok := pair.Key.(*ast.StringNode)
		if !ok {
			r.wrongAt(part(pair.Key, v, v.path), "has a name that is no plain text")
			continue
		}
		field := part(key, v, join(v.path, key.Value))
		field.node = pair.Value
		if other, twice := all[key.Value]; twice {
			r.wrongAt(field, "stands twice, first in line %d", other.line)
			continue
		}
		all[key.Value] = field
	}
	return all
}

// list reads a sequence of at least one.
func (r *reader) list(v value) []value {
	sequence, ok := v.node.(*ast.SequenceNode)
	if !ok || len(sequence.Values) == 0 {
		r.wrongAt(v, "must be a list of at least one")
		return nil
	}
	all := make([]value, len(sequence.Values))
	for i, node := range sequence.Values {
		all[i] = part(node, v, fmt.Sprintf("%s[%d]", v.path, i))
	}
	return all
}

// require reports whether the object has the field, and says so where it has not.
func (r *reader) require(o object, name string) bool {
	if _, mapping := o.node.(*ast.MappingNode); mapping && !o.has(name) {
		r.wrongAt(o.at(name), "is required")
	}
	return o.has(name)
}

func (r *reader) text(v value, otherwise string) string {
	node, ok := v.node.(*ast.StringNode)
	if !ok {
		r.wrongAt(v, "must be a text: put it in quotes if it looks like something else")
		return otherwise
	}
	return node.Value
}

func (r *reader) texts(v value, otherwise string) []string {
	var all []string
	for _, item := range r.list(v) {
		all = append(all, r.text(item, otherwise))
	}
	return all
}

// integer reads decimal digits, as JSON has them; 1 where there are none.
func (r *reader) integer(v value) int64 {
	if node, ok := v.node.(*ast.IntegerNode); ok {
		text := node.GetToken().Value
		n, err := strconv.ParseInt(text, 10, 64)
		if err == nil && strconv.FormatInt(n, 10) == text {
			return n
		}
	}
	r.wrongAt(v, "must be an integer in decimal digits")
	return 1
}

var (
	rateForm = regexp.MustCompile(`^([1-9][0-9]{0,9})/([1-9][0-9]{0,11})?(ms|s|m|h|d)$`)
	spanForm = regexp.MustCompile(`^([1-9][0-9]{0,11})(ms|s|m|h|d)$`)
	units    = map[string]time.Duration{
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}
)

func (r *reader) rate(v value) ratelimit.Rate {
	otherwise := ratelimit.Rate{Count: 1, Per: time.Second}
	before := len(r.wrong)
	found := rateForm.FindStringSubmatch(r.text(v, "1/s"))
	if len(r.wrong) > before {
		return otherwise
	}
	if found == nil {
		r.wrongAt(v, "must be a count, from 1, and a time: 10/s, 100/15m, with ms, s, m, h or d")
		return otherwise
	}
	count, _ := strconv.ParseInt(found[1], 10, 64) // up to ten digits
	per, ok := span(found[2], found[3])
	if !ok {
		r.wrongAt(v, "has a time that is too long")
		return otherwise
	}
	return ratelimit.Rate{Count: count, Per: per}
}

func (r *reader) duration(v value) time.Duration {
	before := len(r.wrong)
	found := spanForm.FindStringSubmatch(r.text(v, "1s"))
	if len(r.wrong) > before {
		return time.Second
	}
	if found == nil {
		r.wrongAt(v, "must be a time: 30s, 5m, with ms, s, m, h or d")
		return time.Second
	}
	d, ok := span(found[1], found[2])
	if !ok {
		r.wrongAt(v, "is too long")
		return time.Second
	}
	return d
}

// span is that many units, one where there is no number.
func span(number, unit string) (time.Duration, bool) {
	n := int64(1)
	if number != "" {
		n, _ = strconv.ParseInt(number, 10, 64) // up to twelve digits
	}
	if n > math.MaxInt64/int64(units[unit]) {
		return 0, false
	}
	return time.Duration(n) * units[unit], true
}
