-- Whether a server is not empty because of instances, whosever they are.
CREATE OR REPLACE FUNCTION runs_instances(p_server text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM instances i WHERE i.server_id = p_server AND i.state <> 'stopped')
$$;
