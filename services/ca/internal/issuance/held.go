package issuance

import (
	"context"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/holders"
)

// held describes a certificate to the registry of holders. What the caller has shown says whose earlier certificate it
// replaces, unless the certificate is of another identity: an impersonator keeps its own.
func held(ctx context.Context, caller auth.Peer, issued *authority.Issued) holders.Certificate {
	leaf := issued.Certificate
	c := holders.Certificate{
		Fingerprint: holders.FingerprintOf(leaf.Raw), Serial: issued.Serial(), Identity: leaf.URIs[0].String(), Signer: issued.Signer,
		Epoch: issued.Epoch, Generation: issued.Generation, AuthorityKeyID: leaf.AuthorityKeyId, NotBefore: leaf.NotBefore,
		NotAfter: leaf.NotAfter, Undelivered: ctx.Err() != nil,
	}
	if c.Identity != caller.ID.String() {
		return c
	}
	if token := caller.Token; token != nil && token.PodUID != "" {
		c.PodUID = token.PodUID
		if namespace, _, ok := auth.WorkloadOf(caller.ID); ok {
			c.Pod = namespace + "/" + token.Pod
		}
		if caller.Cluster != "" {
			c.Pod, c.PodUID = holders.Foreign(caller.Cluster, c.Pod), holders.Foreign(caller.Cluster, c.PodUID)
		}
	}
	if caller.Method == auth.MethodMTLS {
		if own := auth.ClientCertificate(ctx); own != nil {
			c.Predecessor = holders.FingerprintOf(own.Raw)
		}
	}
	return c
}
