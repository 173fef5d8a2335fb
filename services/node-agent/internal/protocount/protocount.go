// Package protocount counts the elements of an encoded protobuf message before it is decoded, so that packages relay
// and nameserver can reject a message that would take too much memory. Field is its only function.
package protocount

import "google.golang.org/protobuf/encoding/protowire"

// Field returns how often a field occurs at the top level of an encoded message, which is the number of elements of a
// repeated field or a map. An element takes from two bytes here and about a hundred when decoded. Counting stops at the
// first invalid part, where decoding fails too.
func Field(message []byte, field protowire.Number) int {
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
