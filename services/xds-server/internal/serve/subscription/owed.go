package subscription

// A client is owed an answer about names that it does not subscribe to: those that it has dropped beside a wildcard,
// and those that it says to hold and that do not exist. They are charged until the client has answered the response
// that settles them.

// owedCost is what such a name is charged beside its text: it is in three sets, or in the response.
const owedCost = 208

// freeOwedBytes is what a client may say to hold of names that do not exist without being charged: a whole fleet
// may reconnect after the same few resources were removed.
const freeOwedBytes = 16 << 10

// owe charges the stream and the account for names that the client is owed an answer about. Those that the class lists
// are free. The error ends the stream; nothing is charged then.
func (c *Client) owe(sub *subscription, names []string) error {
	current := c.class.Snapshot().Type(sub.url)
	var added []string
	for _, name := range names {
		if item, _ := current.Get(name); (item.Blob == nil || !item.Wildcard) && sub.owed.Add(name) {
			added = append(added, name)
		}
	}
	if len(added) == 0 {
		return nil
	}
	counted, charged := owedBytes(added)
	var err error
	if c.nameBytes+counted > c.limits.MaxSubscribedBytes {
		err = errTooManyNames
	} else if reason := c.chargeAccount(charged); reason != "" {
		err = &RefusedError{reason}
	}
	if err != nil {
		for _, name := range added {
			sub.owed.Remove(name)
		}
		return err
	}
	c.nameBytes += counted
	return nil
}

// oweHeld is owe for names that the client says to hold, of which some are free.
func (c *Client) oweHeld(sub *subscription, names []string) error {
	for i, name := range names {
		if c.freeOwed += len(name) + owedCost; c.freeOwed > freeOwedBytes {
			return c.owe(sub, names[i:])
		}
	}
	return nil
}

// settleOwed moves the names that a response settles from the subscription to the response. handleNonce refunds them.
func (sub *subscription) settleOwed(d *draft) {
	if sub.owed.Len() == 0 {
		return
	}
	for _, name := range d.settled {
		if sub.owed.Has(name) && !sub.deferred.Has(name) {
			sub.owed.Remove(name)
			d.owed = append(d.owed, name)
		}
	}
}

// forgetOwed refunds a name that is not answered any more.
func (c *Client) forgetOwed(sub *subscription, name string) {
	if sub.owed.Len() > 0 && sub.owed.Has(name) {
		sub.owed.Remove(name)
		c.refundOwed([]string{name})
	}
}

// refundOwed reverses owe.
func (c *Client) refundOwed(names []string) {
	counted, charged := owedBytes(names)
	c.nameBytes -= counted
	c.refundAccount(charged)
}

// owedBytes returns what names count against MaxSubscribedBytes, and what the account is charged for them.
func owedBytes(names []string) (counted, charged int) {
	for _, name := range names {
		counted += len(name) + nameOverhead
		charged += len(name) + owedCost
	}
	return counted, charged
}
