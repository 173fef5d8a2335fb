package wire

import (
	"errors"
	"io"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Errors of a request that is no valid message.
var (
	errNotUTF8    = errors.New("a resource name is not valid UTF-8")
	errFieldGroup = errors.New("a group in a request, which has none")
	errFieldSize  = errors.New("a field longer than any message")
)

// protoField is one encoded field of a protobuf message.
type protoField struct {
	number    protowire.Number
	delimited bool
	// headerBytes is the number of bytes before the content, size the number of all bytes.
	headerBytes, size int
	raw               []byte
}

// content returns the bytes of a length-delimited field. They are valid as long as the field is.
func (f *protoField) content() []byte { return f.raw[f.headerBytes:] }

// maxFieldBytes is the most that gRPC could be configured to receive.
const maxFieldBytes = 1<<31 - 1

// measureField finds out where the first field of raw ends, which may be beyond raw. The size is 0 if raw is too short
// to tell.
func measureField(raw []byte) (f protoField, err error) {
	if len(raw) >= 2 && raw[0]&0x87 == byte(protowire.BytesType) && raw[0] > 7 && raw[1] < 0x80 {
		return protoField{number: protowire.Number(raw[0] >> 3), delimited: true, headerBytes: 2, size: 2 + int(raw[1])}, nil
	}
	number, kind, n := protowire.ConsumeTag(raw)
	if n < 0 {
		return protoField{}, truncated(n)
	}
	f = protoField{number: number, headerBytes: n}
	switch kind {
	case protowire.BytesType:
		length, n := protowire.ConsumeVarint(raw[f.headerBytes:])
		if n < 0 {
			return protoField{}, truncated(n)
		}
		if length > maxFieldBytes {
			return protoField{}, errFieldSize
		}
		f.delimited, f.headerBytes = true, f.headerBytes+n
		f.size = f.headerBytes + int(length) //nolint:gosec // checked above
	case protowire.StartGroupType, protowire.EndGroupType:
		return protoField{}, errFieldGroup
	default:
		n := protowire.ConsumeFieldValue(number, kind, raw[f.headerBytes:])
		if n < 0 {
			return protoField{}, truncated(n)
		}
		f.size = f.headerBytes + n
	}
	return f, nil
}

// truncated returns nil if the error of protowire only means that the input is too short.
func truncated(n int) error {
	if err := protowire.ParseError(n); !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return nil
}

// eachField calls f for each field of a message that is spread over buffers. Only a field that crosses buffers is
// copied. The field is valid during the call.
func eachField(data mem.BufferSlice, f func(protoField) error) error {
	var piece, joint []byte
	next := func() bool {
		for len(piece) == 0 && len(data) > 0 {
			piece, data = data[0].ReadOnlyData(), data[1:]
		}
		return len(piece) > 0
	}
	for next() {
		at, err := measureField(piece)
		if err != nil {
			return err
		}
		if at.size > 0 && at.size <= len(piece) {
			at.raw, piece = piece[:at.size:at.size], piece[at.size:]
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
					if at, err = measureField(joint); err != nil {
						return err
					}
				}
			}
			at.raw = joint
		}
		if err := f(at); err != nil {
			return err
		}
	}
	return nil
}

// eachFieldIn is eachField for a message in one piece.
func eachFieldIn(raw []byte, f func(protoField) error) error {
	for len(raw) > 0 {
		at, err := measureField(raw)
		if err != nil {
			return err
		}
		if at.size == 0 || at.size > len(raw) {
			return io.ErrUnexpectedEOF
		}
		at.raw, raw = raw[:at.size], raw[at.size:]
		if err := f(at); err != nil {
			return err
		}
	}
	return nil
}
