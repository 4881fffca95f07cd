package api

import "strconv"

// maxQuick is the length of the longest body that is read here, in bytes: what comes of
// it keeps all of it in memory.
const maxQuick = 1 << 10

// quickly reads the request of a check in the plain form in which nearly all clients
// send it, at a fifth of the cost. It has no rules of its own: what it reads is what
// [Decode] would read without it, and at anything else it gives up, and into is as it was.
// The body is valid UTF-8.
func quickly(body []byte, into any) bool {
	request, ok := into.(*RateLimitRequest)
	if !ok || len(body) > maxQuick {
		return false
	}
	q := quick{rest: string(body)}
	var read RateLimitRequest
	q.members(func(name string) bool {
		switch {
		case name == "policy" && read.Policy == "":
			read.Policy = q.text()
			return read.Policy != "" // else a second one would not show
		case name == "descriptors" && read.Descriptors == nil:
			read.Descriptors = q.texts()
		case name == "cost" && read.Cost == nil:
			read.Cost = new(q.integer())
		case name == "request_id" && read.RequestID == nil:
			read.RequestID = new(q.text())
		default:
			return false
		}
		return true
	})
	if q.next(); q.lost || q.rest != "" {
		return false
	}
	*request = read
	return true
}

// A quick is what is left of a body, and whether that is beyond it.
type quick struct {
	rest string
	lost bool
}

// next is the first byte behind white space, 0 at the end or where it is lost.
func (q *quick) next() byte {
	for i := range len(q.rest) {
		switch c := q.rest[i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			q.rest = q.rest[i:]
			return c
		}
	}
	q.rest = ""
	return 0
}

// take takes the byte off, and is lost where it is another.
func (q *quick) take(c byte) {
	if q.lost || q.next() != c {
		q.lost, q.rest = true, ""
		return
	}
	q.rest = q.rest[1:]
}

// members reads an object. each reads the value of a name, or reports that it does not.
func (q *quick) members(each func(name string) bool) {
	q.take('{')
	if q.next() == '}' {
		q.take('}')
		return
	}
	for !q.lost {
		name := q.text()
		q.take(':')
		if !q.lost && !each(name) {
			q.lost = true
		}
		if q.next() != ',' {
			break
		}
		q.take(',')
	}
	q.take('}')
}

// text reads a string without escapes.
func (q *quick) text() string {
	q.take('"')
	for i := range len(q.rest) {
		switch c := q.rest[i]; {
		case c == '"':
			text := q.rest[:i]
			q.rest = q.rest[i+1:]
			return text
		case c == '\\' || c < ' ':
			q.lost = true
			return ""
		}
	}
	q.lost = true
	return ""
}

// texts reads an object of strings.
func (q *quick) texts() map[string]string {
	texts := make(map[string]string, 4)
	q.members(func(name string) bool {
		_, twice := texts[name]
		texts[name] = q.text()
		return !twice
	})
	return texts
}

// integer reads a number of at most 18 digits without a sign.
func (q *quick) integer() int64 {
	first, end := q.next(), 0
	for end < len(q.rest) && q.rest[end] >= '0' && q.rest[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(q.rest[:end], 10, 64)
	if err != nil || end > 18 || first == '0' && end > 1 {
		q.lost = true
		return 0
	}
	q.rest = q.rest[end:]
	return n
}
