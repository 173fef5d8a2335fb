package echo

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// GRPCMethod is called where a URL names none; any other one answers alike.
const GRPCMethod = "/fairlead.scenarios.Echo/Say"

// GRPCType is gRPC's content type.
const GRPCType = "application/grpc"

const (
	healthCheck = "/grpc.health.v1.Health/Check"
	grpcHeader  = 5
	largest     = 16 << 20
)

// EncodeMessage frames a message of text.
func EncodeMessage(text string) ([]byte, error) { return frame(wrapperspb.String(text)) }

func frame(m proto.Message) ([]byte, error) {
	raw, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	framed := make([]byte, grpcHeader, grpcHeader+len(raw))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(raw))) //nolint:gosec // far below
	return append(framed, raw...), nil
}

var errFrame = errors.New("not a gRPC message")

// DecodeMessage is the text of the first framed message; empty bytes are empty text.
func DecodeMessage(raw []byte) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	if len(raw) < grpcHeader || raw[0] != 0 {
		return "", errFrame
	}
	n := int(binary.BigEndian.Uint32(raw[1:]))
	if n > len(raw)-grpcHeader {
		return "", errFrame
	}
	var text wrapperspb.StringValue
	if err := proto.Unmarshal(raw[grpcHeader:grpcHeader+n], &text); err != nil {
		return "", fmt.Errorf("%w: %w", errFrame, err)
	}
	return text.GetValue(), nil
}

// IsGRPC tells whether a request is gRPC: what comes as gRPC-Web is not, unless a proxy has made gRPC of it.
func IsGRPC(h http.Header) bool {
	t := h.Get("Content-Type")
	return t == GRPCType || strings.HasPrefix(t, GRPCType+"+") || strings.HasPrefix(t, GRPCType+";")
}

// answerGRPC answers a call; text is what was seen.
func answerGRPC(w http.ResponseWriter, s *Seen, b *behaviour, code codes.Code) {
	h := w.Header()
	h.Set("Content-Type", GRPCType)
	for _, pair := range b.headers {
		h.Add(pair[0], pair[1])
	}
	h.Set("Trailer", "Grpc-Status, Grpc-Message")
	defer func() {
		h.Set("Grpc-Status", strconv.Itoa(int(code)))
		if code != codes.OK {
			h.Set("Grpc-Message", "as asked of "+s.Workload)
		}
	}()
	if code != codes.OK {
		w.WriteHeader(http.StatusOK)
		return
	}
	var raw []byte
	var err error
	if method, _, _ := strings.Cut(s.Path, "?"); method == healthCheck {
		raw, err = frame(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING})
	} else {
		raw, err = EncodeMessage(string(s.encode(b.size)))
	}
	if err != nil {
		code = codes.Internal
		return
	}
	_, _ = w.Write(raw)
}

// encode is s as JSON, blanks after it up to a size.
func (s *Seen) encode(size int) []byte {
	raw, err := json.Marshal(s)
	if err != nil {
		return []byte(err.Error())
	}
	for len(raw) < min(size, largest) {
		raw = append(raw, ' ')
	}
	return raw
}

// grpcBody reads a message; what is none is given as it is.
func grpcBody(r io.Reader) string {
	raw, err := io.ReadAll(io.LimitReader(r, largest))
	if err != nil {
		return ""
	}
	text, err := DecodeMessage(raw)
	if err != nil {
		return base64.StdEncoding.EncodeToString(raw)
	}
	return text
}
