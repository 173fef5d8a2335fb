package gatewayapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fairlead.dev/pkg/testkit"
)

// judged are the resources with statuses.
var judged = []string{"gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes", "tcproutes", "backendtlspolicies"}

func gatewayAPI(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gatewayGroup, Version: "v1", Resource: resource}
}

// settled is how long statuses must stay the same to be taken for the last ones.
const settled = 3 * time.Second

// statuses waits until the statuses in an API server do not change any more, and returns what they say, by object:
// "<namespace>/<name> <kind>", and place in the status.
func (l *loader) statuses(ctx context.Context) (map[string]map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	tick := time.NewTicker(settled / 3)
	defer tick.Stop()
	var last map[string]map[string]string
	since := time.Now()
	for ; ; <-tick.C {
		now := map[string]map[string]string{}
		for _, resource := range judged {
			list, err := l.client.Resource(gatewayAPI(resource)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", resource, err)
			}
			for i := range list.Items {
				o := &list.Items[i]
				now[o.GetNamespace()+"/"+o.GetName()+" "+o.GetKind()] = statusOf(o)
			}
		}
		if !maps.EqualFunc(now, last, maps.Equal) {
			last, since = now, time.Now()
		} else if time.Since(since) >= settled && len(now["marker/marker Gateway"]) > 0 {
			return now, nil
		}
		if ctx.Err() != nil {
			return nil, errors.New("statuses do not settle")
		}
	}
}

// marker is the last Gateway.
const marker = `
{apiVersion: v1, kind: Namespace, metadata: {name: marker}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: marker, namespace: marker}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
`

// statusOf is what a status says, without Programmed, which means another thing here, messages and times.
func statusOf(o *unstructured.Unstructured) map[string]string {
	out := map[string]string{}
	conditions := func(place string, of map[string]any) {
		list, _ := of["conditions"].([]any)
		for _, c := range list {
			m, _ := c.(map[string]any)
			if m["type"] != "Programmed" {
				out[fmt.Sprintf("%s%v", place, m["type"])] = fmt.Sprintf("%v %v", m["status"], m["reason"])
			}
		}
	}
	status, _ := o.Object["status"].(map[string]any)
	conditions("", status)
	each := func(field string, f func(map[string]any)) {
		list, _ := status[field].([]any)
		for _, e := range list {
			m, _ := e.(map[string]any)
			f(m)
		}
	}
	each("listeners", func(m map[string]any) {
		place := fmt.Sprintf("listener %v ", m["name"])
		out[place+"attachedRoutes"] = fmt.Sprint(m["attachedRoutes"])
		var kinds []string
		list, _ := m["supportedKinds"].([]any)
		for _, k := range list {
			kind, _ := k.(map[string]any)
			kinds = append(kinds, fmt.Sprint(kind["kind"]))
		}
		slices.Sort(kinds)
		out[place+"supportedKinds"] = strings.Join(kinds, ",")
		conditions(place, m)
	})
	for _, field := range []string{"parents", "ancestors"} {
		each(field, func(m map[string]any) {
			ref, _ := m[strings.TrimSuffix(field, "s")+"Ref"].(map[string]any)
			place := fmt.Sprintf("%s %v", strings.TrimSuffix(field, "s"), or(ref["kind"], any("Gateway")))
			for _, part := range []string{"name", "sectionName", "port"} {
				if ref[part] != nil {
					place += fmt.Sprintf(" %v", ref[part])
				}
			}
			if controller := fmt.Sprint(m["controllerName"]); !strings.HasPrefix(controller, "istio.io/") {
				place += " of " + controller
			}
			conditions(place+" ", m)
		})
	}
	return out
}
