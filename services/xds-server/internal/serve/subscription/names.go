package subscription

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/serve/quota"
)

// chargeNewNames charges the account for the added names that the class does not list. The error ends the stream.
func (c *Client) chargeNewNames(sub *subscription, added []string) error {
	current := c.class.Snapshot().Type(sub.url)
	var costly []string
	bytes := 0
	for _, name := range added {
		if item, _ := current.Get(name); item.Blob == nil || !item.Wildcard {
			costly = append(costly, name)
			bytes += len(name) + quota.NameCost
		}
	}
	if len(costly) == 0 {
		return nil
	}
	if reason := c.chargeAccount(bytes); reason != "" {
		return &RefusedError{reason}
	}
	sub.chargedNames.Add(costly)
	return nil
}

// chargeName charges the stream and the account for a name that is kept outside the subscribed names. It returns "" or
// the reason why it is refused.
func (c *Client) chargeName(name string) (refused string) {
	if c.countName(name) != nil {
		c.uncountName(name)
		return tooManyNames
	}
	if refused = c.chargeAccount(len(name) + quota.NameCost); refused != "" {
		c.uncountName(name)
	}
	return refused
}

// refundName reverses chargeName.
func (c *Client) refundName(name string) {
	c.uncountName(name)
	c.refundAccount(len(name) + quota.NameCost)
}

// chargeAccount charges the account for bytes of names. It returns "" or the reason why it is refused.
func (c *Client) chargeAccount(bytes int) (refused string) {
	if refused = c.account.ChargeNames(int64(bytes)); refused == "" {
		c.chargedNameBytes += int64(bytes)
	}
	return refused
}

// refundAccount reverses chargeAccount.
func (c *Client) refundAccount(bytes int) {
	if bytes == 0 {
		return
	}
	c.chargedNameBytes -= int64(bytes)
	c.account.RefundNames(int64(bytes))
}

// countName counts a name against MaxSubscribedBytes, which holds for each stream, whether the name is shared with
// others or not.
func (c *Client) countName(name string) error {
	if c.nameBytes += len(name) + nameOverhead; c.nameBytes > c.limits.MaxSubscribedBytes {
		return errTooManyNames
	}
	return nil
}

func (c *Client) uncountName(name string) { c.nameBytes -= len(name) + nameOverhead }

const tooManyNames = "too many resource names subscribed to on one stream"

var errTooManyNames = status.Error(codes.ResourceExhausted, tooManyNames)

// nameOverhead is what countName adds for each name. It is no measure of memory: that is quota.NameCost, which the
// account is charged.
const nameOverhead = 64
