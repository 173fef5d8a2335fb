package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"fairlead.dev/tests/internal/policygen"
)

// http2Conn is an open connection of HTTP/2, on which one request is under way at a time.
type http2Conn struct {
	*conn
	framer *http2.Framer
	next   uint32
}

// AskHTTP2 sends a request without tokens to the doors of both sides by HTTP/2, whose paths may have bytes that
// HTTP/1.1's cannot. A request that Envoy takes for broken has the status 400, whether it is answered, reset, or ends
// the connection.
func (c *Callers) AskHTTP2(ctx context.Context, r policygen.Request) (answers [Sides]Answer, err error) {
	for side := range answers {
		key := connection{side, r.Connection}
		open := c.http2[key]
		if open == nil {
			if open, err = c.dialHTTP2(ctx, side, r.Connection); err != nil {
				return answers, errors.Join(err, c.gate.Died())
			}
			c.http2[key] = open
		}
		var ended bool
		answers[side], ended, err = open.ask(r)
		if ended || err != nil {
			open.Close()
			delete(c.http2, key)
			err = errors.Join(err, c.gate.Died())
		}
		if err != nil {
			return answers, err
		}
	}
	return answers, nil
}

func (c *Callers) dialHTTP2(ctx context.Context, side int, as policygen.Connection) (*http2Conn, error) {
	plain, err := c.dial(ctx, c.gate.http[side], as)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(plain, http2.ClientPreface); err != nil {
		return nil, err
	}
	out := &http2Conn{conn: plain, framer: http2.NewFramer(plain, plain.in), next: 1}
	out.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return out, out.framer.WriteSettings()
}

// ask sends a request. The connection is of no more use if it is ended, or with an error.
func (c *http2Conn) ask(r policygen.Request) (answer Answer, ended bool, err error) {
	if err := c.SetDeadline(time.Now().Add(answersWithin)); err != nil {
		return answer, false, err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	lines := []policygen.Header{{Name: ":method", Value: r.Method}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: r.Host},
		{Name: ":path", Value: r.Path}}
	for _, h := range append(lines, r.Headers...) {
		if err := encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(h.Name), Value: h.Value}); err != nil {
			return answer, false, err
		}
	}
	request := http2.HeadersFrameParam{StreamID: c.next, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}
	c.next += 2
	if err := c.framer.WriteHeaders(request); err != nil {
		return answer, false, err
	}
	for {
		frame, err := c.framer.ReadFrame()
		var late net.Error
		switch {
		case errors.As(err, &late) && late.Timeout():
			return answer, false, fmt.Errorf("no response to %+v: %w", r, err)
		case err != nil:
			return Answer{Status: http.StatusBadRequest}, true, nil //nolint:nilerr // the answer
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = c.framer.WriteSettingsAck()
			}
		case *http2.RSTStreamFrame:
			return Answer{Status: http.StatusBadRequest}, false, nil
		case *http2.MetaHeadersFrame:
			answer, err = answerOf(f)
			return answer, !f.StreamEnded(), err
		case *http2.GoAwayFrame:
			return Answer{Status: http.StatusBadRequest}, true, nil
		}
		if err != nil {
			return answer, false, err
		}
	}
}

func answerOf(f *http2.MetaHeadersFrame) (Answer, error) {
	status, err := strconv.Atoi(f.PseudoValue("status"))
	out := Answer{Status: status}
	var lines []string
	for _, name := range seen {
		name = strings.TrimPrefix(name, ":")
		for _, h := range f.RegularFields() {
			if h.Name == seenPrefix+name && status == http.StatusOK && h.Value != "" {
				lines = append(lines, name+"="+h.Value)
			}
		}
	}
	out.Seen = strings.Join(lines, " ")
	return out, err
}
