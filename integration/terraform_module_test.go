package integration

import (
	"cmp"
	"maps"
	"path/filepath"
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
)

// A module is a parsed folder of Terraform and what its expressions are evaluated with:
// the provider is not at hand.
type module struct {
	t         *testing.T
	bodies    []*hclsyntax.Body
	variables map[string]cty.Value
	made      map[string]cty.Value // what other resources would be, by type
}

// A block is one that stands in the files, or one of those that a dynamic block or a
// resource's for_each or count makes of it, with what its expressions may name.
type block struct {
	*hclsyntax.Block
	ctx *hcl.EvalContext
}

func readModule(t *testing.T) *module {
	t.Helper()
	m := parseModule(t, terraformDir)
	for _, b := range m.blocks("variable") {
		if b.Body.Attributes["default"] == nil {
			t.Fatalf("%s: no default", b.DefRange())
		}
		v, diags := b.Body.Attributes["default"].Expr.Value(nil)
		m.check(diags)
		m.variables[b.Labels[0]] = typed(b.Body, v)
	}
	return m
}

func parseModule(t *testing.T, dir string) *module {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files: %v, %v", files, err)
	}
	m := &module{t: t, variables: map[string]cty.Value{}, made: map[string]cty.Value{}}
	parser := hclparse.NewParser()
	for _, name := range files {
		file, diags := parser.ParseHCLFile(name)
		m.check(diags)
		m.bodies = append(m.bodies, file.Body.(*hclsyntax.Body))
	}
	return m
}

// typed gives a variable's value the type that the variable declares, as far as lists go.
func typed(body *hclsyntax.Body, v cty.Value) cty.Value {
	if call, ok := body.Attributes["type"].Expr.(*hclsyntax.FunctionCallExpr); ok && call.Name == "list" && v.LengthInt() == 0 {
		return cty.ListValEmpty(cty.String)
	}
	return v
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

// blocks are those of the kind at the top of the files.
func (m *module) blocks(kind string) (all []block) {
	for _, body := range m.bodies {
		for _, b := range body.Blocks {
			if b.Type == kind {
				all = append(all, block{b, nil})
			}
		}
	}
	return all
}

// resources are all that a plan would make of the type.
func (m *module) resources(kind string) (all []block) {
	m.t.Helper()
	known := false
	for _, b := range append(m.blocks("resource"), m.blocks("data")...) {
		if b.Labels[0] != kind {
			continue
		}
		known = true
		all = append(all, m.instances(b)...)
	}
	if !known {
		m.t.Fatalf("no %s", kind)
	}
	return all
}

func (m *module) instances(b block) (all []block) {
	m.t.Helper()
	scope := m.scope()
	switch {
	case b.Body.Attributes["for_each"] != nil:
		for _, e := range m.elements(b.Body.Attributes["for_each"].Expr, scope) {
			all = append(all, block{b.Block, child(scope, "each", e.key, e.value)})
		}
	case b.Body.Attributes["count"] != nil:
		n, diags := b.Body.Attributes["count"].Expr.Value(scope)
		m.check(diags)
		count, _ := n.AsBigFloat().Int64()
		for range count {
			all = append(all, block{b.Block, scope})
		}
	default:
		all = append(all, block{b.Block, scope})
	}
	return all
}

type element struct{ key, value cty.Value }

func (m *module) elements(expr hcl.Expression, ctx *hcl.EvalContext) (all []element) {
	m.t.Helper()
	v, diags := expr.Value(ctx)
	m.check(diags)
	for it := v.ElementIterator(); it.Next(); {
		key, value := it.Element()
		all = append(all, element{key, value})
	}
	return all
}

func child(ctx *hcl.EvalContext, name string, key, value cty.Value) *hcl.EvalContext {
	inner := ctx.NewChild()
	inner.Variables = map[string]cty.Value{name: cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})}
	return inner
}

// within are the blocks of the kind inside one, dynamic ones as what they make.
func (m *module) within(b block, kind string) (all []block) {
	m.t.Helper()
	for _, inner := range b.Body.Blocks {
		switch {
		case inner.Type == kind:
			all = append(all, block{inner, b.ctx})
		case inner.Type == "dynamic" && inner.Labels[0] == kind:
			content := inner.Body.Blocks[0]
			for _, e := range m.elements(inner.Body.Attributes["for_each"].Expr, b.ctx) {
				all = append(all, block{content, child(b.ctx, kind, e.key, e.value)})
			}
		}
	}
	return all
}

func (m *module) one(b block, kind string) block {
	m.t.Helper()
	all := m.within(b, kind)
	if len(all) != 1 {
		m.t.Fatalf("%s: %d blocks %s, want 1", b.Body.SrcRange, len(all), kind)
	}
	return all[0]
}

// value evaluates an argument, null where it is not given.
func (m *module) value(b block, name string) cty.Value {
	m.t.Helper()
	attr := b.Body.Attributes[name]
	if attr == nil {
		return cty.NullVal(cty.DynamicPseudoType)
	}
	ctx := b.ctx
	if ctx == nil {
		ctx = m.scope()
	}
	v, diags := attr.Expr.Value(ctx)
	m.check(diags)
	return v
}

// text is value for a string, "" for null.
func (m *module) text(b block, name string) string {
	m.t.Helper()
	v := m.value(b, name)
	if v.IsNull() {
		return ""
	}
	return v.AsString()
}

func (m *module) expect(b block, name string, want cty.Value) {
	m.t.Helper()
	got, err := convert.Convert(m.value(b, name), want.Type())
	if err != nil || !got.RawEquals(want) {
		m.t.Errorf("%s: %s is %#v, %v; want %#v", b.Body.SrcRange, name, got, err, want)
	}
}

// scope holds the variables, what was made, and locals that build on them alone or on other locals.
func (m *module) scope() *hcl.EvalContext {
	ctx := &hcl.EvalContext{Variables: map[string]cty.Value{"var": cty.ObjectVal(m.variables)}, Functions: functions}
	maps.Copy(ctx.Variables, m.made)
	locals, open := map[string]cty.Value{}, []*hclsyntax.Attribute{}
	for _, b := range m.blocks("locals") {
		open = append(open, slices.SortedFunc(maps.Values(b.Body.Attributes), func(a, b *hclsyntax.Attribute) int {
			return cmp.Compare(a.SrcRange.Start.Byte, b.SrcRange.Start.Byte)
		})...)
	}
	for len(open) > 0 {
		before := len(open)
		open = slices.DeleteFunc(open, func(attr *hclsyntax.Attribute) bool {
			for _, used := range attr.Expr.Variables() {
				if used.RootName() == "local" && locals[second(used)] == cty.NilVal {
					return false
				}
			}
			ctx.Variables["local"] = cty.ObjectVal(locals)
			v, diags := attr.Expr.Value(ctx)
			m.check(diags)
			locals[attr.Name] = v
			return true
		})
		if len(open) == before {
			m.t.Fatalf("local %s names one that does not exist, or itself", open[0].Name)
		}
	}
	ctx.Variables["local"] = cty.ObjectVal(locals)
	return ctx
}

// second is the name behind the first dot.
func second(path hcl.Traversal) string {
	if len(path) > 1 {
		if attr, ok := path[1].(hcl.TraverseAttr); ok {
			return attr.Name
		}
	}
	return ""
}

// functions are those of Terraform that the files use.
var functions = map[string]function.Function{
	"can": tryfunc.CanFunc, "contains": stdlib.ContainsFunc, "floor": stdlib.FloorFunc, "regex": stdlib.RegexFunc,
	"concat": stdlib.ConcatFunc, "flatten": stdlib.FlattenFunc, "format": stdlib.FormatFunc, "keys": stdlib.KeysFunc,
	"length": stdlib.LengthFunc, "lower": stdlib.LowerFunc, "max": stdlib.MaxFunc, "merge": stdlib.MergeFunc, "range": stdlib.RangeFunc,
	"replace": stdlib.ReplaceFunc, "setproduct": stdlib.SetProductFunc, "title": stdlib.TitleFunc,
	"toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
	"alltrue": function.New(&function.Spec{
		Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			for it := args[0].ElementIterator(); it.Next(); {
				if _, v := it.Element(); !v.True() {
					return cty.False, nil
				}
			}
			return cty.True, nil
		},
	}),
	"strcontains": function.New(&function.Spec{
		Params: []function.Parameter{{Name: "text", Type: cty.String}, {Name: "part", Type: cty.String}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(strings.Contains(args[0].AsString(), args[1].AsString())), nil
		},
	}),
}

// references checks that every name that an expression uses is declared: what
// `terraform validate` would, as far as it goes without the provider.
func (m *module) references(children map[string]*module) {
	m.t.Helper()
	known := map[string]bool{}
	for _, b := range m.blocks("variable") {
		known["var."+b.Labels[0]] = true
	}
	for _, b := range m.blocks("locals") {
		for name := range b.Body.Attributes {
			known["local."+name] = true
		}
	}
	for _, b := range m.blocks("resource") {
		known[b.Labels[0]+"."+b.Labels[1]] = true
	}
	for _, b := range m.blocks("data") {
		known["data."+b.Labels[0]+"."+b.Labels[1]] = true
	}
	for name := range children {
		known["module."+name] = true
	}
	for _, body := range m.bodies {
		diags := hclsyntax.VisitAll(body, func(node hclsyntax.Node) hcl.Diagnostics {
			if path, ok := node.(*hclsyntax.ScopeTraversalExpr); ok {
				m.reference(path.Traversal, known, children)
			}
			return nil
		})
		m.check(diags)
	}
}

func (m *module) reference(path hcl.Traversal, known map[string]bool, children map[string]*module) {
	m.t.Helper()
	name := path.RootName() + "." + second(path)
	switch root := path.RootName(); root {
	case "data":
		if third, ok := path[2].(hcl.TraverseAttr); ok {
			name += "." + third.Name
		}
	case "module":
		out, ok := path[2].(hcl.TraverseAttr)
		if child := children[second(path)]; child == nil || !ok || !slices.ContainsFunc(child.blocks("output"), func(b block) bool { return b.Labels[0] == out.Name }) {
			m.t.Errorf("%s: no such output", path.SourceRange())
		}
		return
	case "var", "local":
	default:
		if !strings.HasPrefix(root, "aws_") && !strings.HasPrefix(root, "random_") {
			return // each, count, an iterator, a type, or the variable of a for expression
		}
	}
	if !known[name] {
		m.t.Errorf("%s: %s is not declared", path.SourceRange(), name)
	}
}
