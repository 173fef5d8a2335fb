package beside

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"fairlead.dev/tests/internal/wait"
)

// Headers of a check and of its answer.
const (
	askHeader      = "x-ext-authz"
	resultHeader   = "x-ext-authz-check-result"
	receivedHeader = "x-ext-authz-check-received"
)

// Values of those.
const (
	allow   = "allow"
	slow    = "slow"
	allowed = "allowed"
	denied  = "denied"
	// body is what a caller who is denied reads.
	body = "denied by ext_authz"
)

// slowness is how long the answer to a slow check takes.
const slowness = 2 * time.Second

// verdict is what an authorization server answers.
type verdict struct {
	result, received string
}

// judge decides a check by the header that asks, the method, path and length of the body that came with it.
func judge(ctx context.Context, ask, method, path string, length int) (verdict, error) {
	v := verdict{result: denied, received: fmt.Sprintf("%s %s %d", method, path, length)}
	if ask == allow {
		v.result = allowed
	}
	if ask == slow {
		return v, wait.Pause(ctx, slowness)
	}
	return v, nil
}

// check is the server of EXT_AUTHZ_HTTP.
func check(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller has gone
	}
	v, err := judge(r.Context(), r.Header.Get(askHeader), r.Method, r.RequestURI, len(raw))
	if err != nil {
		return
	}
	w.Header().Set(resultHeader, v.result)
	w.Header().Set(receivedHeader, v.received)
	if v.result == denied {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, body)
	}
}

// authorization is the server of EXT_AUTHZ_GRPC.
type authorization struct {
	authv3.UnimplementedAuthorizationServer
}

// Check implements Envoy's v3 authorization service. A check of a TCP connection has no header that asks, and is
// denied.
func (authorization) Check(ctx context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	request := r.GetAttributes().GetRequest().GetHttp()
	length := max(len(request.GetBody()), len(request.GetRawBody()))
	v, err := judge(ctx, header(request, askHeader), request.GetMethod(), request.GetPath(), length)
	if err != nil {
		return nil, err
	}
	headers := []*corev3.HeaderValueOption{option(resultHeader, v.result), option(receivedHeader, v.received)}
	if v.result == allowed {
		return &authv3.CheckResponse{
			Status: &status.Status{Code: int32(codes.OK)}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
				Headers: headers,
			}},
		}, nil
	}
	return &authv3.CheckResponse{
		Status: &status.Status{Code: int32(codes.PermissionDenied)}, HttpResponse: &authv3.CheckResponse_DeniedResponse{
			DeniedResponse: &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode_Forbidden}, Headers: headers, Body: body},
		},
	}, nil
}

// header finds one of a check, in either of the forms that Envoy has for them.
func header(r *authv3.AttributeContext_HttpRequest, name string) string {
	for k, v := range r.GetHeaders() {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	for _, h := range r.GetHeaderMap().GetHeaders() {
		if strings.EqualFold(h.GetKey(), name) {
			return h.GetValue() + string(h.GetRawValue())
		}
	}
	return ""
}

func option(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}
