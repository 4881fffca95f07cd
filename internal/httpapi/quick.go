package httpapi

import (
	"strconv"

	"github.com/coordsvc/coordsvc/api"
)

// appendDecision writes what encode writes, at a fifth of the cost. A test compares them
// with every field set, and with none.
func appendDecision(b []byte, d *api.RateLimitDecision) []byte {
	b = strconv.AppendBool(append(b, `{"allowed":`...), d.Allowed)
	b = strconv.AppendBool(append(b, `,"degraded":`...), d.Degraded)
	b = appendGiven(b, `,"degraded_reason":`, d.DegradedReason)
	b = appendNonzero(b, `,"delay_ms":`, d.DelayMS)
	b = appendGiven(b, `,"limiting":`, d.Limiting)
	b = appendLimits(append(b, `,"limits":`...), d.Limits)
	b = appendNonzero(b, `,"max_overshoot":`, d.MaxOvershoot)
	b = appendText(append(b, `,"policy":`...), d.Policy)
	b = strconv.AppendInt(append(b, `,"retry_after_ms":`...), d.RetryAfterMS, 10)
	b = appendGiven(b, `,"slot_id":`, d.SlotID)
	b = appendText(append(b, `,"source":`...), string(d.Source))
	b = appendText(append(b, `,"stage":`...), string(d.Stage))
	return append(b, "}\n"...)
}

func appendLimits(b []byte, limits []api.LimitState) []byte {
	if limits == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i := range limits {
		l := &limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(append(b, `{"algorithm":`...), string(l.Algorithm))
		b = strconv.AppendInt(append(b, `,"limit":`...), l.Limit, 10)
		b = appendText(append(b, `,"name":`...), l.Name)
		b = strconv.AppendInt(append(b, `,"remaining":`...), l.Remaining, 10)
		b = strconv.AppendInt(append(b, `,"reset_ms":`...), l.ResetMS, 10)
		b = strconv.AppendInt(append(b, `,"window_ms":`...), l.WindowMS, 10)
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendGiven(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	return appendText(append(b, name...), text)
}

func appendNonzero(b []byte, name string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), n, 10)
}

// appendText has whatever needs an escape written by encoding/json.
func appendText(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := encode(text) // a string has a form in JSON, whatever it is
			return append(b, quoted[:len(quoted)-1]...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}
