package serve

import (
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// maxRejectionBytes is where Envoy's message is cut.
const maxRejectionBytes = 4096

// sent notes the nonce of the response that goes out.
func (s *stream) sent(message any, url, nonce string) {
	s.lock()
	defer s.unlock()
	sub := s.of(url)
	if sub == nil || sub.outstanding == nil || sub.outstanding.message != message {
		return
	}
	out := sub.outstanding
	out.nonce, out.sentAt = nonce, s.server.clock.Now()
	if s.server.traced {
		out.span = s.server.startPush(s, sub, out)
	}
	sub.sent = out.revision
	sub.bytes += uint64(out.size) //nolint:gosec // sizes are not negative
	sub.metrics.pushes.Inc()
	sub.metrics.sentBytes.Add(float64(out.size))
	s.sending = out
	s.server.reports.touch(s)
}

// acknowledge takes the verdict on the outstanding response, if the request carries it, and reports whether it does.
func (s *stream) acknowledge(sub *subscription, nonce string, failure *rpcstatus.Status) bool {
	out := sub.outstanding
	if out == nil || nonce == "" || nonce != out.nonce {
		return false
	}
	if failure != nil {
		s.rejected(sub, out, failure.GetMessage())
		return true
	}
	s.finish(sub, out, "")
	sub.acked = out.revision
	sub.arrived(out)
	for _, name := range out.removed {
		s.trust(sub, name)
	}
	if sub.url == resource.VirtualHostType {
		for _, name := range out.tables {
			if t := s.byName[name]; t != nil {
				t.alone = false
			}
		}
	}
	if !s.delta {
		sub.keep(out.blobs)
	}
	s.readmit(sub, out)
	if len(sub.withheld) == 0 {
		sub.rejection, sub.together = nil, false
	}
	if sub.rejection == nil && out.base != nil {
		sub.base = out.base
	}
	return true
}

// readmit ends the ban on versions that were accepted or are history.
func (s *stream) readmit(sub *subscription, out *response) {
	if len(sub.withheld) == 0 {
		return
	}
	for _, b := range out.blobs {
		if sub.withheld[b.Name()] == b.Version() {
			delete(sub.withheld, b.Name())
		}
	}
	current := s.class.Snapshot().Type(sub.url)
	for name, version := range sub.withheld {
		item, _ := current.Get(name)
		if !s.covers(sub, name, item) || item.Blob == nil || item.Blob.Version() != version {
			delete(sub.withheld, name)
		}
	}
}

// rejected takes a NACK: the versions it blames are not sent again, and what the client holds of the type is unknown from here.
func (s *stream) rejected(sub *subscription, out *response, message string) {
	s.finish(sub, out, message)
	sub.arrived(out)
	sub.metrics.nacks.Inc()
	blamed, named := culprits(sub.url, out, message)
	if sub.url == resource.VirtualHostType {
		blamed, named = s.blameHosts(sub, out, message)
	}
	sub.together = !named && len(blamed) > 1
	names := make([]string, 0, len(blamed))
	for _, b := range blamed {
		sub.withhold(b)
		names = append(names, b.Name())
	}
	sub.resend = true
	for _, name := range out.removed {
		if name != none(tableOf(name)) {
			s.doubt(sub, name)
		}
	}
	if sub.url == resource.RouteType {
		s.rejectedRoutes(out)
	}
	if len(message) > maxRejectionBytes {
		message = strings.ToValidUTF8(message[:maxRejectionBytes], "")
	}
	sub.rejection = &configv1.Rejection{
		ResourceNames: names, Message: message, Revision: out.revision, RejectedAt: timestamppb.New(s.server.clock.Now()),
	}
	s.server.log.Warn("proxy rejected a response", "node", s.node.ID, "type", sub.url, "resources", names, "error", message,
		"revision", out.revision.GetSequence())
}

// blameHosts returns the virtual hosts that a NACK blames. Envoy applies nothing of the route configuration that holds the culprit, and
// what it applied of others depends on chance: those are sent again, each by itself if it is not clear which one is to blame.
func (s *stream) blameHosts(sub *subscription, out *response, message string) (blamed []*store.Blob, named bool) {
	culprit := ""
	for _, name := range out.tables {
		if mentions(message, name) && strings.Contains(message, "route "+name) {
			culprit = name
		}
	}
	if len(out.tables) == 1 {
		return out.blobs, false
	}
	for _, b := range out.blobs {
		if tableOf(b.Name()) == culprit {
			blamed = append(blamed, b)
		} else {
			s.touch(sub, b.Name())
		}
	}
	for _, name := range out.tables {
		if t := s.byName[name]; t != nil && culprit == "" {
			t.alone = true
		}
	}
	return blamed, false
}

// finish ends the life of an outstanding response.
func (s *stream) finish(sub *subscription, out *response, failure string) {
	sub.outstanding = nil
	s.server.pace.answered(out.round)
	if failure == "" {
		sub.metrics.ackSeconds.Observe(s.server.clock.Now().Sub(out.sentAt).Seconds())
	}
	if out.span == nil {
		return
	}
	if failure != "" {
		out.span.SetStatus(codes.Error, failure)
	}
	out.span.SetAttributes(attribute.Bool("fairlead.acked", failure == ""))
	out.span.End()
}

// culprits returns the resources that a NACK blames. Envoy names them for clusters and listeners only; otherwise the whole response is to
// blame.
func culprits(url string, out *response, message string) (blamed []*store.Blob, named bool) {
	if url == resource.ClusterType || url == resource.ListenerType {
		for _, b := range out.blobs {
			if mentions(message, b.Name()) {
				blamed = append(blamed, b)
			}
		}
	}
	if len(blamed) > 0 {
		return blamed, true
	}
	return out.blobs, false
}

// mentions reports whether the text holds the name as a word of its own, not as part of a longer name.
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
		// Envoy ends a name with ": " and a sentence with ".": that is no part of the name.
		if (start == 0 || !inName(text[start-1])) && text[end] == '.' && (end+1 == len(text) || text[end+1] == ' ') {
			return true
		}
		i = start + 1
	}
}

func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("|._-*/", c) >= 0
}

// free lifts the ban on rejected versions that were blamed together once one of them has changed: it is another set then.
func (s *stream) free(b *subscription, current *plan.TypeSnapshot) {
	if !b.together {
		return
	}
	for name, version := range b.withheld {
		if item, _ := current.Get(name); item.Blob == nil || item.Blob.Version() != version {
			for name := range b.withheld {
				s.touch(b, name)
			}
			b.withheld, b.together = nil, false
			return
		}
	}
}

// keep notes what a state-of-the-world client holds: the resources of a response that it acknowledges, or those that
// the version in its first request stands for.
func (b *subscription) keep(blobs []*store.Blob) {
	if b.good == nil || b.complete() {
		b.good = make(map[string]*store.Blob, len(blobs))
	}
	for _, blob := range blobs {
		b.good[blob.Name()] = blob
	}
}

// arrived notes that the client was given clusters it did not have, and has said what became of them.
func (b *subscription) arrived(out *response) {
	if b.arriving.len() == 0 {
		return
	}
	for _, blob := range out.blobs {
		b.arriving.remove(blob.Name())
	}
	for _, name := range out.removed {
		b.arriving.remove(name)
	}
}
