package serve

import (
	"errors"
	"io"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Errors of a request that is no message.
var (
	errNotUTF8    = errors.New("a resource name is not valid UTF-8")
	errFieldGroup = errors.New("a group in a request, which has none")
	errFieldSize  = errors.New("a field longer than any message")
)

// field is one of a message as it stands on the wire.
type field struct {
	number    protowire.Number
	delimited bool
	// head are the bytes before the content, size those of the whole.
	head, size int
	whole      []byte
}

// content is what a delimited field holds. It is valid while the field is.
func (f *field) content() []byte { return f.whole[f.head:] }

// longest is the most that a field can take: as much as gRPC could ever be told to let through.
const longest = 1<<31 - 1

// measure reads where the first field of raw ends, which may be beyond raw. The size is 0 if raw does not even tell that.
func measure(raw []byte) (f field, err error) {
	if len(raw) >= 2 && raw[0]&0x87 == byte(protowire.BytesType) && raw[0] > 7 && raw[1] < 0x80 {
		return field{number: protowire.Number(raw[0] >> 3), delimited: true, head: 2, size: 2 + int(raw[1])}, nil
	}
	number, kind, n := protowire.ConsumeTag(raw)
	if n < 0 {
		return field{}, truncated(n)
	}
	f = field{number: number, head: n}
	switch kind {
	case protowire.BytesType:
		length, n := protowire.ConsumeVarint(raw[f.head:])
		if n < 0 {
			return field{}, truncated(n)
		}
		if length > longest {
			return field{}, errFieldSize
		}
		f.delimited, f.head = true, f.head+n
		f.size = f.head + int(length) //nolint:gosec // checked above
	case protowire.StartGroupType, protowire.EndGroupType:
		return field{}, errFieldGroup
	default:
		n := protowire.ConsumeFieldValue(number, kind, raw[f.head:])
		if n < 0 {
			return field{}, truncated(n)
		}
		f.size = f.head + n
	}
	return f, nil
}

// truncated tells what is wrong from what is not all there.
func truncated(n int) error {
	if err := protowire.ParseError(n); !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return nil
}

// eachField calls f for each field of a message that came in pieces. Only what lies across two pieces is copied; the field is valid during
// the call.
func eachField(data mem.BufferSlice, f func(field) error) error {
	var piece, joint []byte
	next := func() bool {
		for len(piece) == 0 && len(data) > 0 {
			piece, data = data[0].ReadOnlyData(), data[1:]
		}
		return len(piece) > 0
	}
	for next() {
		at, err := measure(piece)
		if err != nil {
			return err
		}
		if at.size > 0 && at.size <= len(piece) {
			at.whole, piece = piece[:at.size:at.size], piece[at.size:]
		} else {
			joint, piece = append(joint[:0], piece...), nil
			for at.size == 0 || len(joint) < at.size {
				if !next() {
					return io.ErrUnexpectedEOF
				}
				n := 1
				if at.size > 0 {
					n = min(at.size-len(joint), len(piece))
				}
				joint, piece = append(joint, piece[:n]...), piece[n:]
				if at.size == 0 {
					if at, err = measure(joint); err != nil {
						return err
					}
				}
			}
			at.whole = joint
		}
		if err := f(at); err != nil {
			return err
		}
	}
	return nil
}
