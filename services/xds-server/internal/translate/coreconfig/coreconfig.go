// Package coreconfig builds the messages of envoy.config.core.v3 that several resource types contain: config sources
// (ADS, ADSWithoutTimeout) and addresses (SocketAddress, Pipe).
package coreconfig

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// ADS requests resources on the ADS stream, with Envoy's default initial fetch timeout of 15 s.
func ADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// ADSWithoutTimeout is ADS for resources without which the proxy must not start to use what refers to them.
func ADSWithoutTimeout() *corev3.ConfigSource {
	out := ADS()
	out.InitialFetchTimeout = durationpb.New(0)
	return out
}

// SocketAddress is an IP address, or a hostname in DNS clusters, and a port.
func SocketAddress(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// Pipe is the path of a unix socket.
func Pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}
