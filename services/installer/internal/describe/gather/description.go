// Package gather gathers what `fairlead describe` says of a Pod or a Service: the rules of package describe for the
// objects that config-watcher has, with what proxies and xds-servers say, and findings. What is gathered prints itself.
package gather

import (
	"time"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/describe"
)

// Description is what is known of a Pod or a Service, and what is wrong with it.
type Description struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Pod       *Pod      `json:"pod,omitempty"`
	Services  []Service `json:"services"`
	Findings  []Finding `json:"findings"`
	// Unknown says what could not be read, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Pod is a Pod with its proxy, and the policies that apply to it.
type Pod struct {
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Identity       string            `json:"identity,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	// Kind is "sidecar", "gateway", "proxyless", or "plain" without a proxy; empty if it is not known.
	Kind        string              `json:"kind,omitempty"`
	Proxy       *Proxy              `json:"proxy,omitempty"`
	Certificate *Certificate        `json:"certificate,omitempty"`
	MutualTLS   []describe.PortMode `json:"mutualTLS"`
	Policies    []describe.Applied  `json:"policies"`
	// Serves are the Gateways of the Gateway API that it serves.
	Serves []describe.ServedGateway `json:"serves,omitempty"`
}

// Proxy is the connected proxy of a Pod.
type Proxy struct {
	XDSServer  string `json:"xdsServer"`
	Version    string `json:"version,omitempty"`
	Identity   string `json:"identity,omitempty"`
	Unverified bool   `json:"unverified,omitempty"`
	// Acked is the newest revision that it has acknowledged.
	Acked string `json:"acknowledged,omitempty"`
	// Types are the states of xDS types, as in proxy-status.
	Types map[string]string `json:"types"`
}

// Certificate is the workload's own.
type Certificate struct {
	Identity  string    `json:"identity"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Service is a Service with its ports and the ways to it.
type Service struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Host      string            `json:"host"`
	Location  string            `json:"location,omitempty"`
	Pods      []PodRow          `json:"pods"`
	Ports     []Port            `json:"ports"`
	Subsets   []describe.Subset `json:"subsets,omitempty"`
	// SeenBy is the proxy whose view of the rules this is: visibility and Sidecars make them differ.
	SeenBy   string              `json:"seenBy,omitempty"`
	Gateways []describe.Exposure `json:"gateways"`
	// Routes are those of the Gateway API.
	Routes []describe.Route `json:"routes,omitempty"`
}

// PodRow is a Pod behind a Service.
type PodRow struct {
	Name string `json:"name"`
	// Kind is that of Pod; Proxy is "connected", "not connected" or empty.
	Kind  string `json:"kind,omitempty"`
	Proxy string `json:"proxy,omitempty"`
}

// Port is a port of a Service, with the rules for it.
type Port struct {
	Port       int32  `json:"port"`
	Name       string `json:"name,omitempty"`
	TargetPort string `json:"targetPort,omitempty"`
	// Protocol is what the name or appProtocol says; empty if proxies detect it.
	Protocol string `json:"protocol,omitempty"`
	// Server is the mode of mutual TLS of the Pods, Client how clients connect, and ClientFrom the DestinationRule that
	// says so.
	Server     string `json:"server,omitempty"`
	Client     string `json:"client,omitempty"`
	ClientFrom string `json:"clientFrom,omitempty"`
	// Rules are the objects that clients' routes and clusters were made from; PassedOver have no part in them.
	Rules      []contract.ExplainedObject `json:"rules"`
	PassedOver []contract.ExplainedObject `json:"passedOver,omitempty"`
}

// Finding is something that is wrong.
type Finding struct {
	Level   string `json:"level"`
	Code    string `json:"code"`
	Object  string `json:"object,omitempty"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}
