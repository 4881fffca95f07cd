package httpapi

import (
	"fmt"
	"reflect"
	"strconv"
	"testing"

	"github.com/coordsvc/coordsvc/api"
)

// What is written quickly is what encoding/json writes, whatever field the contract gets.
func TestDecisionIsWrittenAsTheContractSays(t *testing.T) {
	same := func(d api.RateLimitDecision) {
		t.Helper()
		want, err := encode(d)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendDecision(nil, &d); string(got) != string(want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	same(api.RateLimitDecision{})
	same(api.RateLimitDecision{Limits: []api.LimitState{}})
	full := api.RateLimitDecision{Limits: make([]api.LimitState, 2)}
	n := 0
	fill(reflect.ValueOf(&full).Elem(), &n)
	same(full)
	kinds := reflect.TypeFor[api.RateLimitDecision]()
	for i := range kinds.NumField() {
		one := api.RateLimitDecision{}
		n := 7
		fill(reflect.ValueOf(&one).Elem().Field(i), &n)
		same(one)
	}
	for _, text := range []string{"<&>", `"\`, "\x00\x1f\x7f", "ключ", "\u2028", "\xff", "\b\f\n\r\t"} {
		same(api.RateLimitDecision{Policy: text, Limiting: text, Limits: []api.LimitState{{Name: text}}})
	}
}

// fill gives every field a value of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() { //nolint:exhaustive // the kinds that the contract has
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.String:
		v.SetString("text " + strconv.Itoa(*n))
	default:
		panic(fmt.Sprintf("a decision has a %s", v.Kind()))
	}
}
