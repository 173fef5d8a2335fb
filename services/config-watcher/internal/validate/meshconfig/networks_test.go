package meshconfig

import (
	"strings"
	"testing"
)

func TestMeshNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"":             "",
		"networks: {}": "",
		"networks: {n1: {endpoints: [{fromRegistry: east}, {fromCidr: 10.0.0.0/8}], gateways: [{address: 192.0.2.1, port: 1}, " +
			"{address: lb.example.com, port: 2}, {registryServiceName: a.b.svc.cluster.local, port: 3}]}}": "",
		"networks: {n1: {endpoints: [{fromCidr: 10.0.0.0}]}}":                   `networks.n1.endpoints[0].fromCidr: "10.0.0.0": no range`,
		"networks: {n1: {endpoints: [{fromRegistry: ''}]}}":                     "networks.n1.endpoints[0].fromRegistry: empty",
		"networks: {n1: {endpoints: [{}]}}":                                     "networks.n1.endpoints[0]: it says nothing",
		"networks: {n1: {gateways: [{address: 'a b', port: 1}]}}":               `networks.n1.gateways[0].address: "a b": neither`,
		"networks: {n1: {gateways: [{registryServiceName: 'a b', port: 1}]}}":   `networks.n1.gateways[0].registryServiceName: "a b": no host`,
		"networks: {n1: {gateways: [{port: 1}]}}":                               "networks.n1.gateways[0]: it has no address",
		"networks: {n1: {gateways: [{address: 192.0.2.1, port: 0}]}}":           "networks.n1.gateways[0].port: 0: not a port",
		"networks: {n1: {gatways: []}}":                                         "gatways",
		"networks: {n1: {endpoints: [{fromRegistry: a}]}}\n---\nnetworks: {}\n": "more than one document",
	} {
		got, _, problems := ParseNetworks("", []byte(text))
		err := problems.Err()
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: error %v, want %q", text, err, want)
		case (got != nil) != (want == "" && strings.Contains(text, "gateways")):
			t.Errorf("%q: networks %v", text, got)
		}
	}
}
