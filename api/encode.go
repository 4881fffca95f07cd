package api

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// strictly is encoding/json's way of writing, but for text that is not valid UTF-8: there
// two that differ would become the same.
var strictly = json.JoinOptions(jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false))

// Encode writes a body as the contract has it. It refuses text that is not valid UTF-8,
// and raw JSON that is none.
func Encode(body any) ([]byte, error) { return json.Marshal(body, strictly) }
