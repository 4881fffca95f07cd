package api

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep a free JSON value may be nested: common parsers give up at a few hundred.
const MaxDepth = 128

// A DecodeError says what is wrong with a body. It names the place and repeats
// nothing of what stood there, which may be a secret.
type DecodeError struct {
	Field  string // the top-level field, empty where the fault is in none that can be named
	Reason string
	Value  bool // the JSON and its types are right, the value is not
}

func (e *DecodeError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + " " + e.Reason
}

var (
	errNull   = errors.New("must not be null")
	errNumber = errors.New("holds a number outside 64 bits")
	errDepth  = fmt.Errorf("is nested more than %d deep", MaxDepth)
)

// Decode reads exactly one JSON object into a struct, or returns a [*DecodeError].
//
// It refuses what a lenient reader would guess at: unknown, duplicate and
// differently spelled names, null in place of a value, a number with a fraction
// or an exponent where an integer belongs, numbers outside 64 bits, invalid
// UTF-8 (half surrogate pairs included) and anything behind the object. A field
// of type [stdjson.RawMessage] takes any value, null included, at most
// [MaxDepth] deep. Missing fields stay zero.
func Decode(body []byte, into any) error {
	if !utf8.Valid(body) {
		return &DecodeError{Reason: "the body is not valid UTF-8"}
	}
	if quickly(body, into) {
		return nil
	}
	err := json.Unmarshal(body, into, optionsFor(body))
	if err != nil {
		return describe(err)
	}
	return nil
}

var (
	free = json.UnmarshalFromFunc(func(dec *jsontext.Decoder, raw *stdjson.RawMessage) error {
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		*raw = append((*raw)[:0], value...)
		return checkRaw(value)
	})
	notNull = json.UnmarshalFromFunc(func(dec *jsontext.Decoder, _ any) error {
		if dec.PeekKind() == 'n' {
			return errNull
		}
		return errors.ErrUnsupported // go on as if this function were not there
	})

	known    = json.RejectUnknownMembers(true)
	nullless = json.JoinOptions(known, json.WithUnmarshalers(free))
	strict   = json.JoinOptions(known, json.WithUnmarshalers(json.JoinUnmarshalers(free, notNull)))
)

// optionsFor has nulls looked for, which costs a call for every value, only where there
// may be one.
func optionsFor(body []byte) json.Options {
	if bytes.Contains(body, []byte("null")) {
		return strict
	}
	return nullless
}

// checkRaw refuses what a later reader of the value would trip over.
func checkRaw(value jsontext.Value) error {
	dec := jsontext.NewDecoder(strings.NewReader(string(value)))
	for {
		token, err := dec.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case dec.StackDepth() > MaxDepth:
			return errDepth
		case token.Kind() == '0' && !fits(token.String()):
			return errNumber
		}
	}
}

// fits reports whether a JSON number is an integer of 64 bits or a finite float.
func fits(number string) bool {
	if strings.ContainsAny(number, ".eE") {
		f, err := strconv.ParseFloat(number, 64)
		return err == nil && !math.IsInf(f, 0)
	}
	_, signed := strconv.ParseInt(number, 10, 64)
	_, unsigned := strconv.ParseUint(number, 10, 64)
	return signed == nil || unsigned == nil
}

// describe says what is wrong, in words that hold nothing of the body.
func describe(err error) *DecodeError {
	semantic, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return describeSyntax(err)
	}
	field := fieldOf(semantic.JSONPointer)
	switch {
	case errors.Is(semantic.Err, json.ErrUnknownName) && field == "":
		return &DecodeError{Reason: fmt.Sprintf("unknown field at byte %d", semantic.ByteOffset)}
	case errors.Is(semantic.Err, json.ErrUnknownName):
		return &DecodeError{Field: field, Reason: "is not a known field"}
	case errors.Is(semantic.Err, errInstant):
		return &DecodeError{Field: field, Reason: errInstant.Error(), Value: true}
	case field == "" && semantic.JSONPointer == "":
		return &DecodeError{Reason: "the body must be one JSON object"}
	case errors.Is(semantic.Err, errNull), errors.Is(semantic.Err, errNumber), errors.Is(semantic.Err, errDepth):
		return &DecodeError{Field: field, Reason: semantic.Err.Error()}
	default:
		return &DecodeError{Field: field, Reason: "must be " + wanted(semantic.GoType)}
	}
}

func describeSyntax(err error) *DecodeError {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return &DecodeError{Reason: "the body is not JSON"}
	case errors.Is(err, jsontext.ErrDuplicateName):
		return &DecodeError{Field: fieldOf(syntax.JSONPointer), Reason: "has a duplicate name"}
	default:
		return &DecodeError{Reason: fmt.Sprintf("the body is not one JSON object: see byte %d", syntax.ByteOffset)}
	}
}

// plain is what a field's name looks like. Anything else could be a secret in the wrong place.
var plain = regexp.MustCompile(`^[a-z][a-z_]{0,39}$`)

// fieldOf is the top-level field that the pointer leads into, empty where its name cannot be repeated.
func fieldOf(p jsontext.Pointer) string {
	for name := range p.Tokens() {
		if plain.MatchString(name) {
			return name
		}
		break
	}
	return ""
}

func wanted(t reflect.Type) string {
	if t == nil {
		return "of another type"
	}
	switch t.Kind() { //nolint:exhaustive // the kinds that the contract has
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Int, reflect.Int64:
		return "an integer of 64 bits without fraction or exponent"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "an array"
	case reflect.Map:
		return "an object"
	default:
		return "a string"
	}
}
