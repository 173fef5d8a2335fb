package contract

// RequestAnswer is xds-server's answer at /debug/request: which rule of the routes of the Gateway API answers a request
// at a Gateway, and why no other does.
type RequestAnswer struct {
	// Gateway is "<namespace>/<name>".
	Gateway string `json:"gateway"`
	// Request as it was understood: "GET http://web.example.com:80/cart?x=1".
	Request string `json:"request"`
	// Listener takes the request: "<name>"; "<namespace>/<ListenerSet>/<name>" for one of a ListenerSet; with
	// "<namespace>/<Gateway>/" before it if it is another Gateway's that has the same workloads. Port is its port, and
	// ListenerHost its hostname, "*" for any.
	Listener     string `json:"listener,omitempty"`
	Port         uint32 `json:"port,omitempty"`
	ListenerHost string `json:"listenerHost,omitempty"`
	// Domain is the most specific one at the listener that covers the request's host: its routes alone are tried.
	Domain string `json:"domain,omitempty"`
	// Status is what the gateway answers itself: 404 if no rule matches; 0 if a rule answers.
	Status int `json:"status,omitempty"`
	// Because tells why no rule of the Gateway API answers.
	Because string `json:"because,omitempty"`
	// Answers is the match whose rule answers; nil if none does.
	Answers *RouteMatch `json:"answers,omitempty"`
	// Lost are the other matches that the request satisfies, in the order in which they would be tried; Because says by
	// which step of the order they come later. MoreLost counts those that are left out.
	Lost     []RouteMatch `json:"lost,omitempty"`
	MoreLost int          `json:"moreLost,omitempty"`
	// Never are the matches of the domain that no request reaches; Because says which other match takes all of theirs.
	// MoreNever counts those that are left out, and NotCompared those that were not looked at because there are too
	// many.
	Never       []RouteMatch `json:"never,omitempty"`
	MoreNever   int          `json:"moreNever,omitempty"`
	NotCompared int          `json:"notCompared,omitempty"`
}

// RouteMatch is one match of a rule of a route of the Gateway API.
type RouteMatch struct {
	// Route is the object, without a Detail.
	Route ExplainedObject `json:"route"`
	// Rule and Match are their numbers in the object, from 1; RuleName is the rule's name, if it has one.
	Rule     int    `json:"rule"`
	Match    int    `json:"match"`
	RuleName string `json:"ruleName,omitempty"`
	// Conditions are those of the match, for people.
	Conditions string `json:"conditions"`
	// To says where the rule sends: hosts with ports and weights, a redirect, or a status.
	To      string `json:"to,omitempty"`
	Because string `json:"because,omitempty"`
}
