package probe

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

type (
	value = types.AttributeValue
	item  = map[string]types.AttributeValue
)

func text(s string) value   { return &types.AttributeValueMemberS{Value: s} }
func number(s string) value { return &types.AttributeValueMemberN{Value: s} }
func integer(i int) value   { return number(fmt.Sprint(i)) }

func numberOf(v value) string {
	if n, ok := v.(*types.AttributeValueMemberN); ok {
		return n.Value
	}
	return fmt.Sprintf("<%T %v>", v, v)
}

func textOf(v value) string {
	if n, ok := v.(*types.AttributeValueMemberS); ok {
		return n.Value
	}
	return fmt.Sprintf("<%T %v>", v, v)
}

// Error codes on the wire.
const (
	invalid       = "ValidationException"
	conditionFail = "ConditionalCheckFailedException"
)

// codeOf returns the error's code on the wire.
func codeOf(err error) string {
	if err == nil {
		return "<no error>"
	}
	var ae smithy.APIError
	if errors.As(err, &ae) {
		return ae.ErrorCode()
	}
	m := err.Error()
	return "<non-API: " + m[:min(len(m), 140)] + ">"
}

func short(err error) string {
	if err == nil {
		return "nil"
	}
	m := err.Error()
	if i := strings.Index(m, "api error"); i >= 0 {
		m = m[i:]
	}
	return m[:min(len(m), 200)]
}

// want returns nil if err carries the code.
func want(code string, err error) error {
	if codeOf(err) == code {
		return nil
	}
	return fmt.Errorf("want %s, got %s (%s)", code, codeOf(err), short(err))
}

// A subject is the engine under probe with the one table that its checks share.
type subject struct {
	client *dynamodb.Client
	table  string
	ctx    context.Context
	n      int
}

// pk returns a partition key that no other check uses.
func (t *subject) pk() string { t.n++; return fmt.Sprintf("k-%04d", t.n) }

// token returns a client token, at most 36 bytes long. Tokens belong to the
// account, not to a table: another run's must differ.
func (t *subject) token() string { t.n++; return fmt.Sprintf("%.24s-%04d", t.table, t.n) }

func (t *subject) key(pk string) item { return item{"pk": text(pk), "sk": text("a")} }

func (t *subject) put(it item) error {
	_, e := t.client.PutItem(t.ctx, &dynamodb.PutItemInput{TableName: &t.table, Item: it})
	return e
}

func (t *subject) get(pk string) (item, error) {
	o, e := t.client.GetItem(t.ctx, &dynamodb.GetItemInput{TableName: &t.table, Key: t.key(pk), ConsistentRead: new(true)})
	if e != nil {
		return nil, e
	}
	return o.Item, nil
}

type update struct {
	up, cond string
	names    map[string]string
	vals     item
	rv       types.ReturnValue
	rvccf    bool // ask for the old item on a failed condition
}

func (t *subject) upd(pk string, u update) (*dynamodb.UpdateItemOutput, error) {
	in := &dynamodb.UpdateItemInput{TableName: &t.table, Key: t.key(pk), ExpressionAttributeNames: u.names, ExpressionAttributeValues: u.vals, ReturnValues: u.rv}
	if u.up != "" {
		in.UpdateExpression = &u.up
	}
	if u.cond != "" {
		in.ConditionExpression = &u.cond
	}
	if u.rvccf {
		in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	}
	return t.client.UpdateItem(t.ctx, in)
}

// cond runs a no-op update with a condition and reports whether it held.
func (t *subject) cond(pk, c string, names map[string]string, vals item) (bool, error) {
	v := item{":__x": number("1")}
	for k, x := range vals {
		v[k] = x
	}
	_, e := t.upd(pk, update{up: "SET zz = :__x", cond: c, names: names, vals: v})
	if e == nil {
		return true, nil
	}
	if codeOf(e) == conditionFail {
		return false, nil
	}
	return false, e
}

// A verdict is a condition and whether it should hold.
type verdict struct {
	cond  string
	holds bool
}

// conds evaluates conditions, sending only the placeholders each uses.
func (t *subject) conds(k string, vals item, cs []verdict) error {
	var bad []string
	for _, x := range cs {
		v := item{}
		for n, a := range vals {
			if used(x.cond, n) {
				v[n] = a
			}
		}
		g, e := t.cond(k, x.cond, nil, v)
		if e != nil {
			bad = append(bad, fmt.Sprintf("%s -> %s", x.cond, short(e)))
		} else if g != x.holds {
			bad = append(bad, fmt.Sprintf("%s is %v, want %v", x.cond, g, x.holds))
		}
	}
	if bad != nil {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// used tells whether the condition names the placeholder, not merely one that
// begins with it.
func used(c, n string) bool {
	for i := 0; ; {
		j := strings.Index(c[i:], n)
		if j < 0 {
			return false
		}
		e := i + j + len(n)
		if e == len(c) || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", rune(c[e])) {
			return true
		}
		i = e
	}
}

// refusedWith wants a failed condition whose old item has the attribute.
func refusedWith(e error, attr, val string) error {
	var c *types.ConditionalCheckFailedException
	if !errors.As(e, &c) {
		return want(conditionFail, e)
	}
	if c.Item == nil || textOf(c.Item[attr]) != val {
		return fmt.Errorf("condition failed, but Item=%v", show(c.Item))
	}
	return nil
}

func count(o *dynamodb.QueryOutput) int {
	if o == nil {
		return -1
	}
	return int(o.Count)
}

func attributes(o *dynamodb.UpdateItemOutput) item {
	if o == nil {
		return nil
	}
	return o.Attributes
}

func show(m item) string {
	if m == nil {
		return "nil"
	}
	var ks []string
	for k, v := range m {
		s := fmt.Sprintf("%s=%v", k, v)
		switch x := v.(type) {
		case *types.AttributeValueMemberS:
			s = k + "=" + x.Value
		case *types.AttributeValueMemberN:
			s = k + "=" + x.Value
		}
		ks = append(ks, s)
	}
	sort.Strings(ks)
	return "{" + strings.Join(ks, " ") + "}"
}

// together runs n goroutines that begin at the same time, and returns the first
// error in their order.
func together(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; errs[i] = f(i) })
	}
	close(start)
	wg.Wait()
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}
