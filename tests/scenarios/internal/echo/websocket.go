package echo

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for it
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
)

// WebSocketPath is where WebSockets are served.
const WebSocketPath = "/ws"

const (
	wsText  = 1
	wsClose = 8
	wsPing  = 9
	wsPong  = 10
	wsFinal = 0x80
)

// AcceptKey is what a server answers to a Sec-WebSocket-Key (RFC 6455, 4.2.2).
func AcceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
}

var errWebSocket = errors.New("not a WebSocket message")

// WriteText writes a text frame; a client's are masked.
func WriteText(w io.Writer, text []byte, mask bool) error { return writeFrame(w, wsText, text, mask) }

func writeFrame(w io.Writer, op byte, payload []byte, mask bool) error {
	out := []byte{wsFinal | op}
	bit := byte(0)
	if mask {
		bit = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		out = append(out, bit|byte(n))
	case n < 1<<16:
		out = append(out, bit|126)
		out = binary.BigEndian.AppendUint16(out, uint16(n))
	default:
		out = append(out, bit|127)
		out = binary.BigEndian.AppendUint64(out, uint64(n))
	}
	if mask {
		var key [4]byte
		if _, err := rand.Read(key[:]); err != nil {
			return err
		}
		out = append(out, key[:]...)
		for i, c := range payload {
			out = append(out, c^key[i%4])
		}
	} else {
		out = append(out, payload...)
	}
	_, err := w.Write(out)
	return err
}

// ReadText reads the next text message, answering pings; io.EOF when the peer says that it closes.
func ReadText(rw *bufio.ReadWriter, mask bool) ([]byte, error) {
	var message []byte
	for {
		final, op, payload, err := readFrame(rw)
		if err != nil {
			return nil, err
		}
		switch op {
		case wsClose:
			_ = writeFrame(rw, wsClose, nil, mask)
			_ = rw.Flush()
			return nil, io.EOF
		case wsPing:
			if err := writeFrame(rw, wsPong, payload, mask); err != nil {
				return nil, err
			}
			if err := rw.Flush(); err != nil {
				return nil, err
			}
			continue
		case wsPong:
			continue
		}
		if message = append(message, payload...); len(message) > largest {
			return nil, errWebSocket
		}
		if final {
			return message, nil
		}
	}
}

func readFrame(r io.Reader) (final bool, op byte, payload []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return false, 0, nil, err
	}
	final, op = head[0]&wsFinal != 0, head[0]&0x0f
	masked, n := head[1]&0x80 != 0, uint64(head[1]&0x7f)
	switch n {
	case 126:
		if _, err := io.ReadFull(r, head[:2]); err != nil {
			return false, 0, nil, err
		}
		n = uint64(binary.BigEndian.Uint16(head[:2]))
	case 127:
		if _, err := io.ReadFull(r, head[:8]); err != nil {
			return false, 0, nil, err
		}
		n = binary.BigEndian.Uint64(head[:8])
	}
	if n > largest {
		return false, 0, nil, errWebSocket
	}
	var key [4]byte
	if masked {
		if _, err := io.ReadFull(r, key[:]); err != nil {
			return false, 0, nil, err
		}
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return false, 0, nil, err
	}
	if masked {
		for i := range payload {
			payload[i] ^= key[i%4]
		}
	}
	return final, op, payload, nil
}

func isWebSocket(r *http.Request) bool {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	return path == WebSocketPath && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && r.Header.Get("Sec-Websocket-Key") != ""
}
