package subscription

import (
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// maxRejectionBytes bounds the part of Envoy's error message that a status shows.
const maxRejectionBytes = 4096

// handleNACK is called by handleNonce. The versions that the NACK blames are not sent again until they change;
// the next response of the type, which a later or waiting change causes, carries everything else of the type once
// more, because it is unknown how much of the rejected response the client has applied.
func (c *Client) handleNACK(sub *subscription, out *Response, message string) {
	sub.ahead = nil
	sub.newClustersAnswered(out)
	blamed, named := c.blamedResources(sub, out, message)
	sub.rejectedTogether = !named && len(blamed) > 1
	names := make([]string, 0, len(blamed))
	for _, blob := range blamed {
		sub.rejectVersion(blob)
		names = append(names, blob.Name())
	}
	sub.resendAll = true
	for _, name := range out.Removed {
		if name != placeholderHost(routeConfigOf(name)) {
			c.addUnconfirmedRemoval(sub, name)
		}
	}
	if sub.url == resource.RouteType {
		c.routeConfigsRejected(out)
	}
	if len(message) > maxRejectionBytes {
		message = strings.Clone(strings.ToValidUTF8(message[:maxRejectionBytes], "")) // the rest is not kept
	}
	sub.rejection = &configv1.Rejection{
		ResourceNames: names, Message: message, Revision: out.Revision, RejectedAt: timestamppb.New(c.now),
	}
	out.Rejection = sub.rejection
}

// blamedHosts does the work of blamedResources for virtual hosts. Envoy applies no virtual host of the route
// configuration that contains the bad one, and an arbitrary part of the others. The others are sent again, and if the
// message does not name the route configuration, each route configuration in a response of its own.
func (c *Client) blamedHosts(sub *subscription, out *Response, message string) (blamed []*store.Blob) {
	blamedConfig := ""
	for _, name := range out.routeConfigs {
		if mentions(message, name) && strings.Contains(message, "route "+name) {
			blamedConfig = name
		}
	}
	if len(out.routeConfigs) == 1 {
		return out.Blobs
	}
	for _, blob := range out.Blobs {
		if routeConfigOf(blob.Name()) == blamedConfig {
			blamed = append(blamed, blob)
		} else {
			c.markDirty(sub, blob.Name())
		}
	}
	for _, name := range out.routeConfigs {
		if rc := c.routeConfigs[name]; rc != nil && blamedConfig == "" {
			rc.isolated = true
		}
	}
	return blamed
}

// blamedResources returns the resources that a NACK blames, and whether its message names them. Envoy names clusters
// and listeners; for other types, the whole response is to blame.
func (c *Client) blamedResources(sub *subscription, out *Response, message string) (blamed []*store.Blob, named bool) {
	switch sub.url {
	case resource.VirtualHostType:
		return c.blamedHosts(sub, out, message), false
	case resource.ClusterType, resource.ListenerType:
		for _, blob := range out.Blobs {
			if mentions(message, blob.Name()) {
				blamed = append(blamed, blob)
			}
		}
	}
	if len(blamed) > 0 {
		return blamed, true
	}
	return out.Blobs, false
}

// mentions reports whether the text contains the name as a word, and not as part of a longer name.
func mentions(text, name string) bool {
	if name == "" {
		return false
	}
	for i := 0; ; {
		j := strings.Index(text[i:], name)
		if j < 0 {
			return false
		}
		start, end := i+j, i+j+len(name)
		if (start == 0 || !inName(text[start-1])) && (end == len(text) || !inName(text[end])) {
			return true
		}
		// Envoy writes ": " or the full stop of a sentence after a name; neither is part of it.
		if (start == 0 || !inName(text[start-1])) && text[end] == '.' && (end+1 == len(text) || text[end+1] == ' ') {
			return true
		}
		i = start + 1
	}
}

func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("|._-*/", c) >= 0
}

// forgetRejections lifts the rejection of versions that the client has accepted after all, and of versions that are not
// current any more.
func (c *Client) forgetRejections(sub *subscription, out *Response) {
	if len(sub.rejectedVersions) == 0 {
		return
	}
	for _, blob := range out.Blobs {
		if sub.rejectedVersions[blob.Name()] == blob.Version() {
			delete(sub.rejectedVersions, blob.Name())
		}
	}
	current := c.class.Snapshot().Type(sub.url)
	for name, version := range sub.rejectedVersions {
		item, _ := current.Get(name)
		if !c.covers(sub, name, item) || item.Blob == nil || item.Blob.Version() != version {
			delete(sub.rejectedVersions, name)
		}
	}
}

// retryRejectedTogether lifts the rejection of versions that one NACK has blamed together as soon as one of them has
// changed: only one of them may have been bad.
func (c *Client) retryRejectedTogether(sub *subscription, current *plan.TypeSnapshot) {
	if !sub.rejectedTogether {
		return
	}
	for name, version := range sub.rejectedVersions {
		if item, _ := current.Get(name); item.Blob == nil || item.Blob.Version() != version {
			for name := range sub.rejectedVersions {
				c.markDirty(sub, name)
			}
			sub.rejectedVersions, sub.rejectedTogether = nil, false
			return
		}
	}
}

// rejectVersion keeps a rejected version from being sent again.
func (sub *subscription) rejectVersion(blob *store.Blob) {
	if sub.rejectedVersions == nil {
		sub.rejectedVersions = map[string]string{}
	}
	sub.rejectedVersions[blob.Name()] = blob.Version()
}

// addUnconfirmedRemoval notes that the client may still hold a resource that a rejected response has removed. If the
// name budget has no room for the name, nothing is noted.
func (c *Client) addUnconfirmedRemoval(sub *subscription, name string) {
	if !sub.unconfirmedRemovals.Has(name) && c.chargeName(name) == "" {
		sub.unconfirmedRemovals.Add(name)
	}
}

// confirmRemoval notes that the client has acknowledged the removal of a resource.
func (c *Client) confirmRemoval(sub *subscription, name string) {
	if sub.unconfirmedRemovals.Len() > 0 && sub.unconfirmedRemovals.Has(name) {
		sub.unconfirmedRemovals.Remove(name)
		c.refundName(name)
	}
}
