// Package undelivered makes it safe to repeat requests that a server's proxy could not hand to its application. Such an
// answer (LocalReply) carries a header by which the caller's proxy recognises it (Retry) and tries another host, with
// any method, because the application has not seen the request. Neither application sees the header (Header).
package undelivered

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// Header names the header of answers to undelivered requests. Inbound routes remove it from what applications answer,
// outbound ones from what applications receive.
const Header = "x-fairlead-undelivered"

const (
	// connectionFailed is Envoy's response flag of requests that no connection to the application could be made for.
	connectionFailed = "UF"
	// clusterGone is Envoy's response flag of requests whose cluster is not there: those on a connection that is older
	// than the listener, after the workload has left its Service and the cluster of the port went.
	clusterGone = "NC"
	// retriableHeaders is Envoy's condition for retries of answers with a header of RetriableHeaders.
	retriableHeaders = "retriable-headers"
)

// LocalReply returns the settings of inbound connection managers, which mark the answers of Envoy itself to requests
// for which there was no connection to the application.
func LocalReply() *managerv3.LocalReplyConfig {
	return &managerv3.LocalReplyConfig{Mappers: []*managerv3.ResponseMapper{{
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{connectionFailed, clusterGone}},
		}},
		HeadersToAdd: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: Header, Value: "true"}}},
	}}}
}

// Retry adds marked answers to what a policy retries, within its number of attempts.
func Retry(policy *routev3.RetryPolicy) {
	if policy.RetryOn != "" {
		policy.RetryOn += ","
	}
	policy.RetryOn += retriableHeaders
	policy.RetriableHeaders = []*routev3.HeaderMatcher{{
		Name: Header, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	}}
}
