package contract

// Explanation is xds-server's answer at /debug/why: the objects that a proxy's resource was made from. If the name may
// mean several resources, only Proxy and Candidates are set.
type Explanation struct {
	Proxy      string         `json:"proxy"`
	Candidates []ResourceName `json:"candidates,omitempty"`

	Type string `json:"type,omitempty"`
	Name string `json:"name,omitempty"`
	// RouteConfiguration contains the virtual host, if that is no resource of its own.
	RouteConfiguration string `json:"routeConfiguration,omitempty"`
	// Version is the hash of the bytes that proxies of the class are served; "" if there are none.
	Version string `json:"version,omitempty"`
	// Revision that the explanation is about. Sent and Acked are those of the newest response of the type to this
	// proxy.
	Revision uint64 `json:"revision,omitempty"`
	Sent     uint64 `json:"sent,omitempty"`
	Acked    uint64 `json:"acked,omitempty"`
	// Class of the proxy, and the Workload and the Sidecar that have put it there.
	Class    string           `json:"class,omitempty"`
	Workload *ExplainedObject `json:"workload,omitempty"`
	Sidecar  string           `json:"sidecar,omitempty"`
	// Problem is why the resource could not be built or was rejected, or that the proxy does not have it.
	Problem string `json:"problem,omitempty"`
	// MadeFrom are the objects that the resource was made from.
	MadeFrom []ExplainedObject `json:"madeFrom"`
	// PassedOver are objects that are about the same hosts and have no effect on the resource.
	PassedOver []ExplainedObject `json:"passedOver,omitempty"`
	// NotFound lists the lookups that found nothing.
	NotFound []string `json:"notFound,omitempty"`
	// LookedUp lists everything that the resource depends on: a change of any of it builds the resource again.
	LookedUp []string `json:"lookedUp,omitempty"`
}

// ResourceName is one of several resources that a name may mean.
type ResourceName struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// ExplainedObject is an object of the mesh that has an effect on a resource, or might have had one.
type ExplainedObject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Source delivered the object; "" for objects that the mesh has made itself.
	Source string `json:"source,omitempty"`
	// Generation counts the changes of the object's spec; 0 if the source keeps none.
	Generation int64  `json:"generation,omitempty"`
	Location   string `json:"location,omitempty"`
	// Detail tells which part of the object has an effect, or why it has none.
	Detail string `json:"detail,omitempty"`
}
