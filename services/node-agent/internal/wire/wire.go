// Package wire looks at protobuf messages before they are decoded.
package wire

import "google.golang.org/protobuf/encoding/protowire"

// Count is how often a field stands at the top level of a message: a repeated field or a map has as many elements, each
// of which takes two bytes here and a hundred when it is decoded. What follows a part that is no protobuf is not
// counted, and not decoded either.
func Count(message []byte, field protowire.Number) int {
	n := 0
	for len(message) > 0 {
		number, _, length := protowire.ConsumeField(message)
		if length < 0 {
			return n
		}
		if number == field {
			n++
		}
		message = message[length:]
	}
	return n
}
