// Package dynamo decides what an answer of DynamoDB, or the lack of one, means
// to the caller of a write, and keeps the spelling of items and tables in one
// place for the stores that live there.
package dynamo

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// An Item is a stored item, a key or a set of expression values.
type Item = map[string]types.AttributeValue

// FormatName is the attribute that carries an item's format number.
const FormatName = "v"

// S makes a string attribute.
func S(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

// N makes a number attribute.
func N[T ~int | ~int64](n T) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(int64(n), 10)}
}

// B makes a binary attribute.
func B(b []byte) types.AttributeValue { return &types.AttributeValueMemberB{Value: b} }

// Bool makes a boolean attribute.
func Bool(b bool) types.AttributeValue { return &types.AttributeValueMemberBOOL{Value: b} }

// A Reader takes an item apart. An attribute that is absent reads as its zero
// value, one of another type is an error, and Err returns the first of these.
type Reader struct {
	item Item
	err  error
}

// Read begins to read an item, which must have the format unless it is empty.
func Read(item Item, format int64) *Reader {
	r := &Reader{item: item}
	if got := r.Int(FormatName); len(item) > 0 && got != format && r.err == nil {
		r.err = fmt.Errorf("dynamo: item has format %d, want %d", got, format)
	}
	return r
}

// Raw reads an item of an index that holds keys alone, and so no format.
func Raw(item Item) *Reader { return &Reader{item: item} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Has reports whether the attribute is there.
func (r *Reader) Has(name string) bool { return r.item[name] != nil }

// Str reads a string.
func (r *Reader) Str(name string) string {
	a := attribute[*types.AttributeValueMemberS](r, name)
	if a == nil {
		return ""
	}
	return a.Value
}

// Int reads a number without a fraction that fits 64 bits.
func (r *Reader) Int(name string) int64 {
	a := attribute[*types.AttributeValueMemberN](r, name)
	if a == nil {
		return 0
	}
	n, err := strconv.ParseInt(a.Value, 10, 64)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("dynamo: attribute %s: %w", name, err)
	}
	return n
}

// Bytes reads a binary.
func (r *Reader) Bytes(name string) []byte {
	a := attribute[*types.AttributeValueMemberB](r, name)
	if a == nil {
		return nil
	}
	return a.Value
}

// Bool reads a boolean.
func (r *Reader) Bool(name string) bool {
	a := attribute[*types.AttributeValueMemberBOOL](r, name)
	return a != nil && a.Value
}

func attribute[A types.AttributeValue](r *Reader, name string) (a A) {
	got := r.item[name]
	if got == nil {
		return a
	}
	a, ok := got.(A)
	if !ok && r.err == nil {
		r.err = fmt.Errorf("dynamo: attribute %s is a %T, want a %T", name, got, a)
	}
	return a
}
